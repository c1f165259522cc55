#include "client/cli/screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

#include "client/cli/table.h"

namespace luwu::cli {
namespace {

constexpr char kClearScreen[] = "\033[2J";
constexpr char kHome[] = "\033[H";
constexpr char kClearToLineEnd[] = "\033[K";
constexpr char kClearBelow[] = "\033[J";
constexpr char kHideCursor[] = "\033[?25l";
constexpr char kShowCursor[] = "\033[?25h";

bool Emit(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
         std::fflush(stdout) == 0;
}

// The frame over the last one: every line is cut to the window, so nothing wraps or scrolls.
std::string Overdraw(const std::string& frame) {
  winsize window = {};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_row > 1;
  const size_t rows = known ? window.ws_row - 1u : 23;
  const size_t columns = known && window.ws_col > 0 ? window.ws_col : 80;
  std::string out = kHome;
  size_t row = 0;
  for (size_t begin = 0; begin < frame.size() && row < rows; ++row) {
    const size_t end = frame.find('\n', begin);
    const size_t length = (end == std::string::npos ? frame.size() : end) - begin;
    const bool more = row + 1 == rows && begin + length + 1 < frame.size();
    out += more ? "..." : CutToColumns(std::string_view(frame).substr(begin, length), columns);
    out += std::string(kClearToLineEnd) + "\n";
    begin += length + 1;
  }
  return out + kClearBelow;
}

}  // namespace

Screen::Screen() : is_terminal_(isatty(STDOUT_FILENO) == 1) {}

Screen::~Screen() {
  if (is_terminal_ && drawn_) Emit(kShowCursor);
}

bool Screen::Draw(const std::string& frame) {
  if (!is_terminal_) return Emit(frame);
  const std::string first = drawn_ ? "" : std::string(kHideCursor) + kClearScreen;
  drawn_ = true;
  return Emit(first + Overdraw(frame));
}

}  // namespace luwu::cli
