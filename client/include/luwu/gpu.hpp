// Fetches into and pushes from GPU memory for C++ (luwu.h says what the end of an operation means).
// Failures throw luwu::cxx::Error.
#ifndef LUWU_GPU_HPP_
#define LUWU_GPU_HPP_

#include "luwu.hpp"

namespace luwu::cxx {

inline Op fetch_device(const Session& session, uint32_t layer, uint64_t version, const Segments& to,
                       luwu_stream stream) {
  luwu_op op = 0;
  check(luwu_fetch_device(session.handle(), layer, version, to.data(), uint32_t(to.size()), stream,
                          kTimeoutMs, &op));
  return Op(op);
}

// `how.struct_size` is set here.
inline Op push_device(const Session& session, uint32_t layer, const Segments& from,
                      luwu_device_push how) {
  how.struct_size = sizeof how;
  luwu_op op = 0;
  check(luwu_push_device(session.handle(), layer, from.data(), uint32_t(from.size()), &how,
                         kTimeoutMs, &op));
  return Op(op);
}

inline luwu_device_info device_info(const Session& session) {
  luwu_device_info info = {};
  info.struct_size = sizeof info;
  check(luwu_session_get_device_info(session.handle(), &info));
  return info;
}

}  // namespace luwu::cxx

#endif  // LUWU_GPU_HPP_
