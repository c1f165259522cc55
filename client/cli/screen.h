// Where the frames of --watch go. On a terminal each frame is drawn over the last one, cut to the
// window, with the cursor hidden until the end; elsewhere frames follow each other as plain text.
#pragma once

#include <string>

namespace luwu::cli {

class Screen {
 public:
  Screen();
  ~Screen();  // gives the cursor back, below the last frame
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  bool is_terminal() const { return is_terminal_; }
  // False when standard output takes no more.
  bool Draw(const std::string& frame);

 private:
  const bool is_terminal_;
  bool drawn_ = false;
};

}  // namespace luwu::cli
