// The files of an export, from nothing to their final names. One daemon begins it: it lays the
// files out in a hidden folder inside the target folder (export_draft.h), with space set aside and
// headers written. All daemons write their parts there (export_run.h). When all have, one daemon
// finishes: the files take their names, indexes last. Until then the target folder's own files are
// as they were; what fails or is given up leaves the hidden folder only, which Abandon removes.
//
// Of two exports into one folder at once the later one is refused: each locks its draft before it
// looks for others.
//
// Stateless; any thread; every call may wait for the device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/tensor/job_spec.h"
#include "server/interchange/export_draft.h"
#include "server/interchange/training_state.h"

namespace luwu::interchange {

inline constexpr uint64_t kDefaultFileBytesMax = 5'000'000'000;
inline constexpr uint64_t kFileBytesMin = 1'000'000;

struct ExportOptions {
  std::string folder = {};  // absolute; made when it does not exist, its parent must
  DType dtype = DType::kFloat32;
  uint64_t file_bytes_max = kDefaultFileBytesMax;
  bool optimizer_state = false;
  bool overwrite = false;
};

struct BegunExport {
  std::string draft;  // name of the hidden folder
  std::vector<std::string> files;
  uint64_t tensor_bytes = 0;
  bool made_folder = false;  // the target folder was not there
  UniqueFd lock;             // of the draft; to be kept until the export has ended
};

// `moments`: state arrays besides the master. kAlreadyExists when the folder has such files, unless
// `overwrite`, or when another export into it is in progress; kResourceExhausted when there is no
// space for them. What it made is gone after an error.
StatusOr<BegunExport> BeginExport(const ExportOptions& options, const JobSpec& spec,
                                  uint32_t moments, const TrainingState& state);
// With `overwrite`, what is in the folder of an earlier export is replaced; else, when something
// has come there meanwhile, kAlreadyExists. Returns the files' names. A daemon that dies on the way
// leaves no files of two exports that could be taken for one: optimizer state and indexes go before
// anything comes, and come after the masters.
StatusOr<std::vector<std::string>> FinishExport(const std::string& folder, const std::string& draft,
                                                bool overwrite);
// With `made_folder` the target folder goes, too, when it is empty.
Status AbandonExport(const std::string& folder, const std::string& draft, bool made_folder);

}  // namespace luwu::interchange
