// Files that several writers fill in pieces of any size at any offset.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "common/base/memory.h"
#include "server/interchange/file_io.h"
#include "server/interchange/output_file.h"
#include "tests/unit/interchange/file_maker.h"

namespace luwu::interchange {
namespace {

TEST(OutputFile, PiecesOfSeveralWritersMakeTheWholeFile) {
  constexpr uint64_t kBytes = 8 * kMiB + 123;
  Folder folder;
  std::mt19937 random(1);
  std::string expected(kBytes, '\0');
  std::generate(expected.begin(), expected.end(), [&] { return static_cast<char>(random()); });
  const std::string path = folder.at("file");
  ASSERT_TRUE(CreateSized(path, kBytes).ok());
  // Two writers, cut anywhere, in any order.
  struct Piece {
    uint64_t begin, end;
  };
  std::vector<Piece> pieces;
  for (uint64_t at = 0; at < kBytes;) {
    const uint64_t most = random() % 3 == 0 ? 3 * kMiB : random() % 2 == 0 ? 300'000 : 5'000;
    const uint64_t end = std::min(kBytes, at + 1 + random() % most);
    pieces.push_back({at, end});
    at = end;
  }
  ASSERT_GT(pieces.size(), 8u);
  std::shuffle(pieces.begin(), pieces.end(), random);
  std::vector<OutputFile> writers;
  for (int i = 0; i < 2; ++i) {
    StatusOr<OutputFile> writer = OutputFile::Open(path);
    ASSERT_TRUE(writer.ok()) << writer.status();
    writers.push_back(*std::move(writer));
  }
  const StatusOr<Mapping> memory = AllocateHuge(4 * kMiB);
  ASSERT_TRUE(memory.ok());
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto [begin, end] = pieces[i];
    // In step with the file, or not.
    const uint64_t shift = i % 4 == 3 ? 1 : begin % OutputFile::kBlockBytes;
    std::byte* const data = memory->data() + shift;
    std::copy_n(std::as_bytes(std::span(expected)).begin() + static_cast<ptrdiff_t>(begin),
                end - begin, data);
    const Status written = writers[i % 2].Write(begin, {data, end - begin});
    ASSERT_TRUE(written.ok()) << written;
  }
  for (OutputFile& writer : writers) EXPECT_TRUE(writer.Sync().ok());
  EXPECT_TRUE(ReadWhole(path) == expected);
}

TEST(OutputFile, AFileThatIsNotThereIsNamed) {
  const Status status = OutputFile::Open("/nowhere/file").status();
  EXPECT_EQ(CodeOf(status), ErrorCode::kNotFound);
  EXPECT_THAT(MessageOf(status), testing::HasSubstr("/nowhere/file"));
}

}  // namespace
}  // namespace luwu::interchange
