// Errors of luwu.h as C++ exceptions. Part of luwu.hpp.
#ifndef LUWU_ERROR_HPP_
#define LUWU_ERROR_HPP_

#include <cstdint>
#include <stdexcept>
#include <string>

#include "luwu.h"

namespace luwu::cxx {

class Error : public std::runtime_error {
 public:
  Error(int32_t code, const std::string& text)
      : std::runtime_error(std::string(luwu_strerror(code)) + ": " + text), code_(code) {}
  int32_t code() const { return code_; }  // luwu_status

 private:
  int32_t code_;
};

inline void check(int32_t status) {
  if (status < 0) throw Error(status, luwu_last_error());
}

}  // namespace luwu::cxx

#endif  // LUWU_ERROR_HPP_
