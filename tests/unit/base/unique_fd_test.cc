#include "common/base/unique_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <utility>

namespace luwu {
namespace {

UniqueFd OpenNull() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }
bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFdTest, ClosesWhatItOwns) {
  int fd = -1;
  {
    const UniqueFd owner = OpenNull();
    fd = owner.get();
    EXPECT_TRUE(owner.valid());
    EXPECT_TRUE(IsOpen(fd));
  }
  EXPECT_FALSE(IsOpen(fd));
}

TEST(UniqueFdTest, MovesOwnership) {
  UniqueFd a = OpenNull();
  const int fd = a.get();
  UniqueFd b = std::move(a);
  EXPECT_EQ(b.get(), fd);
  UniqueFd c = OpenNull();
  const int replaced = c.get();
  c = std::move(b);
  EXPECT_EQ(c.get(), fd);
  EXPECT_FALSE(IsOpen(replaced)) << "assignment closes the former descriptor";
  EXPECT_TRUE(IsOpen(fd));
}

TEST(UniqueFdTest, ReleaseHandsTheDescriptorOver) {
  UniqueFd owner = OpenNull();
  const int fd = owner.Release();
  EXPECT_FALSE(owner.valid());
  owner.Reset();
  EXPECT_TRUE(IsOpen(fd));
  const UniqueFd again(fd);
}

}  // namespace
}  // namespace luwu
