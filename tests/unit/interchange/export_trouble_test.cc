// Exports that end early, meet another one, or were mixed up: what is left is never taken for one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "common/base/failpoint.h"
#include "server/interchange/export_folder.h"
#include "server/interchange/export_run.h"
#include "server/interchange/import_run.h"
#include "tests/unit/interchange/file_maker.h"
#include "tests/unit/interchange/model.h"

namespace luwu::interchange {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ExportTroubleTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(failpoint::Configure("").ok()); }
  static TrainingState StateAt(uint64_t step) {
    return {step, 1, 0, {{7, 7, 7, 6, 7}, {5, 0}, {0, 0}}};
  }
  ExportOptions Options(const std::string& folder) const {
    return {.folder = folder, .optimizer_state = true, .overwrite = true};
  }
  Status Write(const std::string& folder, const BegunExport& begun, uint64_t step) {
    NodePart part(spec_, 1, 0, &values_);
    part.step = step;
    ASSIGN_OR_RETURN(const std::string draft, DraftPath(folder, begun.draft));
    ASSIGN_OR_RETURN(const auto run, ExportRun::Open({draft, true, step}, &part));
    for (bool done = false; !done;) {
      ASSIGN_OR_RETURN(done, run->Step());
    }
    return OkStatus();
  }
  Status Export(const std::string& folder, uint64_t step) {
    ASSIGN_OR_RETURN(const BegunExport begun,
                     BeginExport(Options(folder), spec_, 2, StateAt(step)));
    RETURN_IF_ERROR(Write(folder, begun, step));
    return FinishExport(folder, begun.draft, true).status();
  }
  // The step that all files of the folder are of.
  StatusOr<std::string> Import(const std::string& folder, bool optimizer_state) {
    LayerValues got = Untouched(spec_, 3);
    NodePart part(spec_, 1, 0, &got);
    ASSIGN_OR_RETURN(const auto run,
                     ImportRun::Open({.path = folder, .optimizer_state = optimizer_state}, &part));
    if (!optimizer_state) return std::string("masters");
    return run->optimizer_files()->metadata().at("luwu.step");
  }

  const JobSpec spec_ = SmallSpec();
  LayerValues values_ = Different(spec_, 3);
  Folder folder_;
};

TEST_F(ExportTroubleTest, AKillWhileAnExportIsReplacedLeavesNoMixOfTwo) {
  for (int renames = 1; renames <= 2; ++renames) {
    ASSERT_TRUE(Export(folder_.path(), 3).ok());
    ASSERT_EQ(*Import(folder_.path(), true), "3");
    // What comes after the error is not done, as after a kill there.
    const std::string point = fmt::format("interchange.rename=error(EIO)@{}", renames);
    ASSERT_TRUE(failpoint::Configure(point).ok());
    ASSERT_EQ(CodeOf(Export(folder_.path(), 8)), ErrorCode::kUnavailable);
    EXPECT_EQ(CodeOf(Import(folder_.path(), true).status()), ErrorCode::kNotFound) << renames;
    EXPECT_TRUE(Import(folder_.path(), false).ok()) << "masters of one of them";
    ASSERT_TRUE(failpoint::Configure("").ok());
    ASSERT_TRUE(Export(folder_.path(), 9).ok());
    EXPECT_EQ(*Import(folder_.path(), true), "9");
    EXPECT_THAT(folder_.Names(), ElementsAre("model.safetensors", "optimizer.safetensors"));
  }
}

TEST_F(ExportTroubleTest, MastersAndStateOfTwoExportsAreRefusedEvenOfOneStep) {
  for (const uint64_t other_step : {3, 4}) {
    ASSERT_TRUE(Export(folder_.at("a"), 3).ok());
    ASSERT_TRUE(Export(folder_.at("b"), other_step).ok());
    std::filesystem::copy_file(folder_.at("a/optimizer.safetensors"),
                               folder_.at("b/optimizer.safetensors"),
                               std::filesystem::copy_options::overwrite_existing);
    const Status mixed = Import(folder_.at("b"), true).status();
    EXPECT_EQ(CodeOf(mixed), ErrorCode::kCorrupt);
    EXPECT_THAT(MessageOf(mixed), HasSubstr("b/model.safetensors"));
    EXPECT_THAT(MessageOf(mixed), HasSubstr("are of different exports"));
    EXPECT_TRUE(Import(folder_.at("b"), false).ok()) << "masters alone are whole";
  }
}

TEST_F(ExportTroubleTest, MastersThatSayNothingOfAnExportGoWithoutState) {
  ASSERT_TRUE(Export(folder_.path(), 3).ok());
  std::string model = ReadWhole(folder_.at("model.safetensors"));
  const size_t at = model.find("luwu.export");
  ASSERT_NE(at, std::string::npos);
  model.replace(at, 11, "other.thing");
  folder_.Write("model.safetensors", model);
  const Status status = Import(folder_.path(), true).status();
  EXPECT_EQ(CodeOf(status), ErrorCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), HasSubstr("has no luwu.export in its metadata"));
  EXPECT_TRUE(Import(folder_.path(), false).ok());
}

TEST_F(ExportTroubleTest, OfTwoExportsIntoOneFolderAtOnceTheLaterOneIsRefused) {
  const std::string folder = folder_.at("out");
  auto first = BeginExport(Options(folder), spec_, 2, StateAt(3));
  ASSERT_TRUE(first.ok()) << first.status();
  for (const bool overwrite : {false, true}) {
    ExportOptions options = Options(folder);
    options.overwrite = overwrite;
    const Status second = BeginExport(options, spec_, 2, StateAt(8)).status();
    EXPECT_EQ(CodeOf(second), ErrorCode::kAlreadyExists);
    EXPECT_THAT(MessageOf(second), HasSubstr("another export into '" + folder + "'"));
  }
  ASSERT_TRUE(Write(folder, *first, 3).ok());
  ASSERT_TRUE(FinishExport(folder, first->draft, true).ok());
  first->lock.Reset();
  EXPECT_EQ(*Import(folder, true), "3");
  ASSERT_TRUE(Export(folder, 8).ok());
  EXPECT_EQ(*Import(folder, true), "8");
}

TEST_F(ExportTroubleTest, AFolderThatTheExportMadeGoesWithIt) {
  const std::string folder = folder_.at("out");
  ASSERT_TRUE(failpoint::Configure("interchange.allocate=error(ENOSPC)@2").ok());
  const Status full = BeginExport(Options(folder), spec_, 2, StateAt(3)).status();
  EXPECT_EQ(CodeOf(full), ErrorCode::kResourceExhausted);
  EXPECT_THAT(folder_.Names(), IsEmpty());
  for (const bool made_before : {false, true}) {
    if (made_before) std::filesystem::create_directory(folder);
    const auto begun = BeginExport(Options(folder), spec_, 2, StateAt(3));
    ASSERT_TRUE(begun.ok());
    EXPECT_NE(begun->made_folder, made_before);
    ASSERT_TRUE(AbandonExport(folder, begun->draft, begun->made_folder).ok());
    EXPECT_EQ(std::filesystem::exists(folder), made_before);
  }
}

}  // namespace
}  // namespace luwu::interchange
