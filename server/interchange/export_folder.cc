#include "server/interchange/export_folder.h"

#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/base/failpoint.h"
#include "server/interchange/export_draft.h"
#include "server/interchange/export_layout.h"
#include "server/interchange/file_io.h"
#include "server/interchange/tensor_parts.h"

namespace luwu::interchange {
namespace {

constexpr std::string_view kModel = "model";
constexpr std::string_view kOptimizer = "optimizer";

// The digits of "-00001-of-00003".
bool IsPartNumber(std::string_view text) {
  const auto is_number = [](std::string_view digits) {
    return digits.size() >= 5 && digits.find_first_not_of("0123456789") == std::string_view::npos;
  };
  const size_t of = text.find("-of-");
  return of != std::string_view::npos && text.starts_with('-') &&
         is_number(text.substr(1, of - 1)) && is_number(text.substr(of + 4));
}

// A name that an export would use.
bool IsExportName(std::string_view name) {
  for (const std::string_view base : {kModel, kOptimizer}) {
    if (name == IndexNameOf(std::string(base)) || name == SingleNameOf(std::string(base))) {
      return true;
    }
    constexpr std::string_view kSuffix = ".safetensors";
    if (!name.starts_with(base) || !name.ends_with(kSuffix)) continue;
    name.remove_prefix(base.size());
    name.remove_suffix(kSuffix.size());
    return IsPartNumber(name);
  }
  return false;
}

bool IsIndex(std::string_view name) { return name.ends_with(".json"); }

StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator at(folder, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  if (error) return FileError("list", folder, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

StatusOr<std::vector<std::string>> ExportNamesIn(const std::string& folder) {
  ASSIGN_OR_RETURN(std::vector<std::string> names, NamesIn(folder));
  std::erase_if(names, [](const std::string& name) { return !IsExportName(name); });
  return names;
}

Status Remove(const std::string& path) {
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return OkStatus();
  return FileError("remove", path, errno);
}

Status CheckOptions(const ExportOptions& options) {
  RETURN_IF_ERROR(CheckAbsolutePath("the folder of an export", options.folder));
  if (!IsSupported(options.dtype)) {
    return Error(ErrorCode::kInvalidArgument,
                 "dtype '{}' cannot be exported; float32, bfloat16 "
                 "and float16 can",
                 DTypeName(options.dtype));
  }
  if (options.file_bytes_max < kFileBytesMin) {
    return Error(ErrorCode::kInvalidArgument, "files of at most {} bytes; allow at least {}",
                 options.file_bytes_max, kFileBytesMin);
  }
  if (options.optimizer_state && options.dtype != DType::kFloat32) {
    return Error(ErrorCode::kInvalidArgument,
                 "optimizer state can go on with float32 masters only; export float32, or without "
                 "optimizer state");
  }
  return OkStatus();
}

Status Refusal(const std::string& folder, const std::string& name) {
  return Error(ErrorCode::kAlreadyExists,
               "'{}' has {} already; export to another folder, or add --overwrite", folder, name);
}

// The folder exists then. True: it was made.
StatusOr<bool> MakeFolder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0777) == 0) return true;
  if (errno != EEXIST) return FileError("make the folder", folder, errno);
  return false;
}

// Whether an export may go where `draft`, which is locked, is.
Status ClearFolder(const ExportOptions& options, const std::string& draft) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(options.folder));
  for (const std::string& name : names) {
    if (IsExportName(name) && !options.overwrite) return Refusal(options.folder, name);
    if (!IsDraftName(name) || name == draft) continue;
    const std::string path = options.folder + "/" + name;
    ASSIGN_OR_RETURN(const bool in_use, IsDraftInUse(path));
    if (in_use) {
      return Error(ErrorCode::kAlreadyExists,
                   "another export into '{}' is in progress ({}); export to another folder, or "
                   "again when it has ended",
                   options.folder, name);
    }
    // What an export that was killed has left.
    if (options.overwrite) RETURN_IF_ERROR(AbandonExport(options.folder, name, false));
  }
  return OkStatus();
}

LayoutRequest RequestFor(const ExportOptions& options, const JobSpec& spec, uint32_t first_array,
                         uint32_t end_array) {
  LayoutRequest request;
  request.file_bytes_max = options.file_bytes_max;
  for (uint32_t array = first_array; array < end_array; ++array) {
    for (const LayerSpec& layer : spec.layers) {
      for (const TensorSpec& tensor : layer.tensors) {
        if (!IsStored(tensor, array)) continue;
        TensorEntry& entry = request.tensors.emplace_back();
        entry.name = StoredName(tensor.name, array);
        entry.dtype = FileDTypeOf(array == 0 ? options.dtype : DType::kFloat32);
        entry.shape = tensor.shape;
      }
    }
  }
  return request;
}

Status WriteLayout(const ExportLayout& layout, const std::string& draft, BegunExport* begun) {
  for (const LaidOutFile& file : layout.files) {
    const std::string path = draft + "/" + file.name;
    ASSIGN_OR_RETURN(const UniqueFd fd, CreateSized(path, file.bytes));
    RETURN_IF_ERROR(WriteAt({path, fd.get(), 0}, std::as_bytes(std::span(file.header))));
    RETURN_IF_ERROR(SyncData(path, fd.get()));
    begun->files.push_back(file.name);
  }
  begun->tensor_bytes += layout.tensor_bytes;
  if (layout.index.empty()) return OkStatus();
  begun->files.push_back(layout.index_name);
  return WriteSmallFile(draft + "/" + layout.index_name, layout.index);
}

Status WriteDraft(const ExportOptions& options, const std::vector<ExportLayout>& layouts,
                  BegunExport* begun) {
  const std::string path = options.folder + "/" + begun->draft;
  ASSIGN_OR_RETURN(begun->lock, MakeDraft(path));
  RETURN_IF_ERROR(ClearFolder(options, begun->draft));
  for (const ExportLayout& layout : layouts) RETURN_IF_ERROR(WriteLayout(layout, path, begun));
  return SyncDirectory(path);
}

// The files that stand in the way, but not masters that are replaced at once by new ones: a kill
// leaves the old export's masters, or nothing that an import takes.
Status RemoveOld(const std::string& folder, const std::vector<std::string>& fresh) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ExportNamesIn(folder));
  // An index first: it must not name files of two exports.
  for (const std::string& name : names) {
    if (IsIndex(name)) RETURN_IF_ERROR(Remove(folder + "/" + name));
  }
  for (const std::string& name : names) {
    const bool replaced =
        name.starts_with(kModel) && std::find(fresh.begin(), fresh.end(), name) != fresh.end();
    if (!IsIndex(name) && !replaced) RETURN_IF_ERROR(Remove(folder + "/" + name));
  }
  return names.empty() ? OkStatus() : SyncDirectory(folder);
}

struct Folders {
  const std::string& from;
  const std::string& to;
};
Status MoveAll(const Folders& folders, const std::vector<std::string>& names, bool indexes) {
  for (const std::string& name : names) {
    if (IsIndex(name) != indexes) continue;
    const std::string from = folders.from + "/" + name;
    if (const int error = LUWU_FAILPOINT("interchange.rename"); error != 0) {
      return FileError("rename", from, error);
    }
    if (::rename(from.c_str(), (folders.to + "/" + name).c_str()) != 0) {
      return FileError("rename", from, errno);
    }
  }
  return SyncDirectory(folders.to);
}

}  // namespace

StatusOr<BegunExport> BeginExport(const ExportOptions& options, const JobSpec& spec,
                                  uint32_t moments, const TrainingState& state) {
  RETURN_IF_ERROR(CheckOptions(options));
  BegunExport begun;
  begun.draft = NewDraftName();
  const Metadata common = CommonMetadata(state.step, ExportIdOf(begun.draft));
  std::vector<ExportLayout> layouts;
  LayoutRequest model = RequestFor(options, spec, 0, 1);
  model.base = kModel;
  model.metadata = common;
  ASSIGN_OR_RETURN(layouts.emplace_back(), LayOut(model));
  if (options.optimizer_state) {
    LayoutRequest optimizer = RequestFor(options, spec, 1, 1 + moments);
    optimizer.base = kOptimizer;
    optimizer.metadata = common;
    optimizer.first_metadata = StateMetadata(spec, state);
    ASSIGN_OR_RETURN(layouts.emplace_back(), LayOut(optimizer));
  }
  ASSIGN_OR_RETURN(begun.made_folder, MakeFolder(options.folder));
  const Status written = WriteDraft(options, layouts, &begun);
  if (written.ok()) return begun;
  // What it says is less than why the draft could not be written.
  (void)AbandonExport(options.folder, begun.draft, begun.made_folder);
  return written;
}

StatusOr<std::vector<std::string>> FinishExport(const std::string& folder, const std::string& draft,
                                                bool overwrite) {
  ASSIGN_OR_RETURN(const std::string path, DraftPath(folder, draft));
  ASSIGN_OR_RETURN(std::vector<std::string> names, ExportNamesIn(path));
  if (names.empty()) return Error(ErrorCode::kNotFound, "the export in '{}' has no files", path);
  ASSIGN_OR_RETURN(const std::vector<std::string> old, ExportNamesIn(folder));
  if (!old.empty() && !overwrite) return Refusal(folder, old.front());
  RETURN_IF_ERROR(RemoveOld(folder, names));
  RETURN_IF_ERROR(MoveAll({path, folder}, names, false));
  RETURN_IF_ERROR(MoveAll({path, folder}, names, true));
  RETURN_IF_ERROR(RemoveEmptyDraft(path));
  return names;
}

Status AbandonExport(const std::string& folder, const std::string& draft, bool made_folder) {
  ASSIGN_OR_RETURN(const std::string path, DraftPath(folder, draft));
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return FileError("remove", path, error.value());
  if (!made_folder || ::rmdir(folder.c_str()) == 0) return OkStatus();
  if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOENT) return OkStatus();
  return FileError("remove the folder", folder, errno);
}

}  // namespace luwu::interchange
