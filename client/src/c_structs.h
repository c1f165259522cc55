// From the structs of luwu.h to ours: sizes, null pointers, enum values, text. What the values mean
// is checked further in. Used by the C ABI files only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "client/include/luwu/luwu.h"
#include "client/src/job_deleter.h"
#include "client/src/segments.h"
#include "client/src/session_opener.h"
#include "common/base/status.h"

namespace luwu::client {

// Sizes that a struct had in earlier releases of this ABI level: its callers live on.
template <typename Struct>
inline constexpr std::array<uint32_t, 0> kFormerSizes = {};
template <>
inline constexpr std::array<uint32_t, 2> kFormerSizes<luwu_job_spec> = {80, 152};
template <>
inline constexpr std::array<uint32_t, 1> kFormerSizes<luwu_hyper> = {64};
template <>
inline constexpr std::array<uint32_t, 2> kFormerSizes<luwu_open_options> = {64, 72};
template <>
inline constexpr std::array<uint32_t, 2> kFormerSizes<luwu_session_info> = {56, 64};
template <>
inline constexpr std::array<uint32_t, 1> kFormerSizes<luwu_commit_result> = {528};

// kInvalidArgument for null, kBadStruct for a size that no release of this ABI level had.
template <typename Struct>
Status CheckStruct(const Struct* value, const char* what) {
  if (value == nullptr) return Error(ErrorCode::kInvalidArgument, "{} is NULL", what);
  if (value->struct_size == sizeof(Struct)) return OkStatus();
  const auto& former = kFormerSizes<Struct>;
  if (std::count(former.begin(), former.end(), value->struct_size) != 0) return OkStatus();
  return Error(ErrorCode::kBadStruct, "{}.struct_size is {}; this library's is {}", what,
               value->struct_size, sizeof(Struct));
}

// A checked struct as of this release: fields that the caller's does not have are 0.
template <typename Struct>
Struct Widened(const Struct& value) {
  Struct out = {};
  std::memcpy(&out, &value, value.struct_size);
  return out;
}

// Fills in as much of a checked struct as the caller's has.
template <typename Struct>
void CopyOut(const Struct& values, Struct* out) {
  const uint32_t size = out->struct_size;
  std::memcpy(out, &values, size);
  out->struct_size = size;
}

// A pointer to where a result goes.
Status CheckOut(const void* pointer, const char* what);

StatusOr<OpenOptions> ToOpenOptions(const luwu_open_options* options);
StatusOr<DeleteOptions> ToDeleteOptions(const char* endpoints, const char* job, uint32_t force,
                                        uint32_t timeout_ms);
StatusOr<std::vector<HyperParameters>> ToGroups(const luwu_hyper* groups, uint32_t count);

// Into `segments`, whose memory is reused.
Status ToSegments(const luwu_segment* in, uint32_t count, std::vector<Segment>* segments);

}  // namespace luwu::client
