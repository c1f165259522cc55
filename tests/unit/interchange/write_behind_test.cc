// Pieces that a thread writes while the next ones are made.
#include "server/interchange/write_behind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <random>
#include <string>

#include "server/interchange/file_io.h"
#include "tests/unit/interchange/file_maker.h"

namespace luwu::interchange {
namespace {

constexpr uint64_t kPieceBytes = 100'000;

class WriteBehindTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(CreateSized(Path(i), kPieces * kPieceBytes).ok());
      StatusOr<OutputFile> file = OutputFile::Open(Path(i));
      ASSERT_TRUE(file.ok()) << file.status();
      files_[i] = *std::move(file);
    }
    auto made = WriteBehind::Create(kPieceBytes);
    ASSERT_TRUE(made.ok()) << made.status();
    writes_ = *std::move(made);
  }
  std::string Path(int i) const { return folder_.at("file" + std::to_string(i)); }
  // Piece `k` of both files.
  Status WritePieces(uint64_t k) {
    for (int i = 0; i < 2; ++i) {
      ASSIGN_OR_RETURN(const ByteSpan buffer, writes_->Buffer());
      std::fill(buffer.begin(), buffer.begin() + kPieceBytes, static_cast<std::byte>('a' + k + i));
      writes_->Write(&files_[i], k * kPieceBytes, buffer.first(kPieceBytes));
    }
    return OkStatus();
  }

  static constexpr uint64_t kPieces = 20;
  Folder folder_;
  OutputFile files_[2];
  std::unique_ptr<WriteBehind> writes_;
};

TEST_F(WriteBehindTest, EveryPieceIsInItsFileAfterDrain) {
  for (uint64_t k = 0; k < kPieces; ++k) ASSERT_TRUE(WritePieces(k).ok());
  ASSERT_TRUE(writes_->Drain().ok());
  for (int i = 0; i < 2; ++i) {
    std::string expected;
    for (uint64_t k = 0; k < kPieces; ++k) {
      expected.append(kPieceBytes, static_cast<char>('a' + k + i));
    }
    EXPECT_TRUE(ReadWhole(Path(i)) == expected) << i;
  }
}

TEST_F(WriteBehindTest, AFailedWriteIsToldAtTheNextPieceOrAtDrain) {
  ASSERT_TRUE(WritePieces(0).ok());
  ASSERT_TRUE(writes_->Drain().ok());
  // No file may be written to from here on: EFBIG.
  const auto former = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit none = {.rlim_cur = kPieceBytes, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  Status status;
  for (uint64_t k = 1; k < kPieces && status.ok(); ++k) status = WritePieces(k);
  const Status drained = writes_->Drain();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, former);
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(drained.ok());
  EXPECT_NE(ToString(drained).find("file"), std::string::npos) << drained;
}

}  // namespace
}  // namespace luwu::interchange
