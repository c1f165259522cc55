// From the structs of luwu.h to ours: sizes, null pointers, enum values, text. What the values mean
// is checked further in. Used by the C ABI files only.
#pragma once

#include <cstdint>
#include <vector>

#include "client/include/luwu/luwu.h"
#include "client/src/segments.h"
#include "client/src/session_opener.h"
#include "common/base/status.h"

namespace luwu::client {

// kInvalidArgument for null, kBadStruct for a size other than this library's.
template <typename Struct>
Status CheckStruct(const Struct* value, const char* what) {
  if (value == nullptr) return Error(ErrorCode::kInvalidArgument, "{} is NULL", what);
  if (value->struct_size == sizeof(Struct)) return OkStatus();
  return Error(ErrorCode::kBadStruct, "{}.struct_size is {}; this library's is {}", what,
               value->struct_size, sizeof(Struct));
}

// A pointer to where a result goes.
Status CheckOut(const void* pointer, const char* what);

StatusOr<OpenOptions> ToOpenOptions(const luwu_open_options* options);
StatusOr<std::vector<HyperParameters>> ToGroups(const luwu_hyper* groups, uint32_t count);

// Into `segments`, whose memory is reused.
Status ToSegments(const luwu_segment* in, uint32_t count, std::vector<Segment>* segments);

}  // namespace luwu::client
