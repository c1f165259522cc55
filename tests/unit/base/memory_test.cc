#include "common/base/memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace luwu {
namespace {

constexpr uint64_t kPage = 4096;

bool AllZero(ConstByteSpan bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

SharedMemory Shared(uint64_t bytes) {
  StatusOr<SharedMemory> memory = CreateShared("luwu-test", bytes);
  if (!memory.ok()) {
    ADD_FAILURE() << ToString(memory.status());
    return {};
  }
  return *std::move(memory);
}

TEST(HugeMemoryTest, IsZeroWritableAndLargeEnough) {
  for (const uint64_t bytes : {uint64_t{1}, kPage, kPage + 1, 2 * kMiB - 1, 2 * kMiB, 5 * kMiB}) {
    StatusOr<Mapping> mapping = AllocateHuge(bytes);
    ASSERT_TRUE(mapping.ok()) << ToString(mapping.status());
    ASSERT_GE(mapping->bytes(), bytes);
    EXPECT_TRUE(AllZero(mapping->span())) << bytes;
    std::memset(mapping->data(), 0x5a, mapping->bytes());
  }
  StatusOr<Mapping> none = AllocateHuge(0);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->data(), nullptr);
}

TEST(HugeMemoryTest, PagesArePresentBeforeTheFirstTouch) {
  StatusOr<Mapping> mapping = AllocateHuge(4 * kMiB);
  ASSERT_TRUE(mapping.ok());
  std::vector<unsigned char> resident(mapping->bytes() / kPage);
  ASSERT_EQ(::mincore(mapping->data(), mapping->bytes(), resident.data()), 0);
  EXPECT_EQ(std::count_if(resident.begin(), resident.end(),
                          [](unsigned char page) { return (page & 1) == 0; }),
            0);
}

TEST(HugeMemoryTest, AnImpossibleSizeIsAnError) {
  for (const uint64_t bytes : {uint64_t{1} << 46, uint64_t{1} << 60, ~uint64_t{0}}) {
    EXPECT_EQ(CodeOf(AllocateHuge(bytes).status()), ErrorCode::kResourceExhausted) << bytes;
  }
}

TEST(MappingTest, MovesOwnership) {
  StatusOr<Mapping> made = AllocateHuge(kPage);
  ASSERT_TRUE(made.ok());
  Mapping a = *std::move(made);
  std::byte* const data = a.data();
  Mapping b = std::move(a);
  EXPECT_EQ(b.data(), data);
  Mapping c;
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  c.data()[0] = std::byte{1};
  c = Mapping();
  unsigned char resident = 0;
  EXPECT_NE(::mincore(data, kPage, &resident), 0) << "unmapped when its owner lets go";
}

TEST(SharedMemoryTest, CannotBeResized) {
  const SharedMemory memory = Shared(2 * kPage);
  EXPECT_TRUE(AllZero(memory.mapping.span()));
  EXPECT_NE(::ftruncate(memory.fd.get(), kPage), 0);
  EXPECT_NE(::ftruncate(memory.fd.get(), 4 * kPage), 0);
}

TEST(SharedMemoryTest, APeerSeesTheSameBytes) {
  const SharedMemory memory = Shared(2 * kPage);
  StatusOr<Mapping> peer = MapPeerMemory(memory.fd.get(), 2 * kPage, true);
  ASSERT_TRUE(peer.ok()) << ToString(peer.status());
  memory.mapping.data()[5000] = std::byte{42};
  EXPECT_EQ(peer->data()[5000], std::byte{42});
  peer->data()[1] = std::byte{7};
  EXPECT_EQ(memory.mapping.data()[1], std::byte{7});
}

TEST(SharedMemoryTest, SealedReadOnlyRefusesPeerWritersOnly) {
  const SharedMemory memory = Shared(kPage);
  ASSERT_TRUE(SealReadOnly(memory).ok());
  EXPECT_FALSE(MapPeerMemory(memory.fd.get(), kPage, true).ok());
  EXPECT_NE(::pwrite(memory.fd.get(), "x", 1, 0), 1);
  StatusOr<Mapping> reader = MapPeerMemory(memory.fd.get(), kPage, false);
  ASSERT_TRUE(reader.ok()) << ToString(reader.status());
  EXPECT_NE(::mprotect(reader->data(), kPage, PROT_READ | PROT_WRITE), 0)
      << "a read-only mapping must not become writable";
  memory.mapping.data()[9] = std::byte{3};
  EXPECT_EQ(reader->data()[9], std::byte{3}) << "the owner still writes";
}

TEST(SharedMemoryTest, RefusesAPeersRegionOfAnotherSize) {
  const SharedMemory memory = Shared(2 * kPage);
  for (const uint64_t bytes : {uint64_t{0}, kPage, 3 * kPage, 2 * kPage + 1}) {
    EXPECT_EQ(CodeOf(MapPeerMemory(memory.fd.get(), bytes, false).status()),
              ErrorCode::kInvalidArgument)
        << bytes;
  }
}

TEST(SharedMemoryTest, RefusesARegionThatItsOwnerCouldShrink) {
  const UniqueFd open_ended(::memfd_create("luwu-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open_ended.get(), kPage), 0);
  EXPECT_EQ(CodeOf(MapPeerMemory(open_ended.get(), kPage, false).status()),
            ErrorCode::kInvalidArgument);
  ASSERT_EQ(::fcntl(open_ended.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_FALSE(MapPeerMemory(open_ended.get(), kPage, false).ok());
  ASSERT_EQ(::fcntl(open_ended.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_TRUE(MapPeerMemory(open_ended.get(), kPage, false).ok());
}

TEST(SharedMemoryTest, RefusesWhatIsNotAMemfd) {
  std::string path = testing::TempDir() + "luwu_memory_XXXXXX";
  const UniqueFd file(::mkstemp(path.data()));
  ASSERT_TRUE(file.valid());
  ASSERT_EQ(::ftruncate(file.get(), kPage), 0);
  EXPECT_FALSE(MapPeerMemory(file.get(), kPage, false).ok());
  EXPECT_FALSE(MapPeerMemory(-1, kPage, false).ok());
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace luwu
