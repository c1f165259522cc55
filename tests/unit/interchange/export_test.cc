// Export by several nodes into the same files, and what the files are then, byte for byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/interchange/export_folder.h"
#include "server/interchange/export_layout.h"
#include "server/interchange/export_run.h"
#include "server/interchange/import_run.h"
#include "server/interchange/training_state.h"
#include "tests/unit/interchange/file_maker.h"
#include "tests/unit/interchange/model.h"

namespace luwu::interchange {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TrainingState SomeState() {
  TrainingState state;
  state.step = 7;
  state.loss_scale = 0.1f;
  state.finite_run = 3;
  state.applied = {{7, 7, 7, 6, 7}, {5, 0}, {0, 0}};
  return state;
}

class ExportTest : public testing::Test {
 protected:
  StatusOr<std::vector<std::string>> Export(ExportOptions options, uint32_t nodes) {
    if (options.folder.empty()) options.folder = folder_.path();
    ASSIGN_OR_RETURN(const BegunExport begun, BeginExport(options, spec_, 2, SomeState()));
    id_ = begun.draft.substr(begun.draft.size() - 16);
    ASSIGN_OR_RETURN(const std::string draft, DraftPath(options.folder, begun.draft));
    uint64_t bytes = 0;
    for (uint32_t node = 0; node < nodes; ++node) {
      NodePart part(spec_, nodes, node, &values_);
      part.step = node == late_node_ ? 8 : 7;
      ASSIGN_OR_RETURN(const auto run, ExportRun::Open({draft, options.optimizer_state, 7}, &part));
      for (bool done = false; !done;) {
        ASSIGN_OR_RETURN(done, run->Step());
      }
      EXPECT_EQ(run->done_bytes(), run->total_bytes());
      // All arrays of a piece before the next piece, nothing twice.
      EXPECT_EQ(std::adjacent_find(part.reads.begin(), part.reads.end(), std::greater_equal<>()),
                part.reads.end());
      bytes += run->total_bytes();
    }
    EXPECT_EQ(bytes, begun.tensor_bytes);
    return FinishExport(options.folder, begun.draft, options.overwrite);
  }

  const JobSpec spec_ = SmallSpec();
  LayerValues values_ = Different(spec_, 3);
  Folder folder_;
  std::string id_;  // of the last export
  uint32_t late_node_ = 99;
};

TEST_F(ExportTest, TheFileIsTheFormatWhoeverWritesIt) {
  const std::string begin = R"({"__metadata__":{"format":"pt","luwu.export":")";
  std::string json = R"(","luwu.step":"7"},)"
                     R"("h.0.w":{"dtype":"F32","shape":[10,12],"data_offsets":[0,480]},)"
                     R"("h.0.b":{"dtype":"F32","shape":[13],"data_offsets":[480,532]},)"
                     R"("h.0.frozen":{"dtype":"F32","shape":[100],"data_offsets":[532,932]},)"
                     R"("h.1.s":{"dtype":"F32","shape":[],"data_offsets":[932,936]},)"
                     R"("h.1.w":{"dtype":"F32","shape":[64],"data_offsets":[936,1192]},)"
                     R"("table.w":{"dtype":"F32","shape":[100],"data_offsets":[1192,1592]}})";
  while ((begin.size() + 16 + json.size()) % 8 != 0) json += ' ';
  std::string data;
  for (uint32_t layer = 0; layer < 3; ++layer) {
    for (uint32_t tensor = 0; tensor < spec_.layers[layer].tensors.size(); ++tensor) {
      data += FloatBytes(TensorValues(spec_, values_, layer, tensor));
    }
  }
  for (uint32_t nodes = 1; nodes <= 4; ++nodes) {
    const auto names = Export({.overwrite = true}, nodes);
    ASSERT_TRUE(names.ok()) << names.status();
    EXPECT_THAT(*names, ElementsAre("model.safetensors"));
    EXPECT_THAT(folder_.Names(), ElementsAre("model.safetensors"));
    EXPECT_EQ(ReadWhole(folder_.at("model.safetensors")), FileBytes(begin + id_ + json, data))
        << nodes;
  }
}

TEST_F(ExportTest, HalfPrecisionIsRounded) {
  values_[{1, 0}] = std::vector<float>(65, 1.5f);
  ASSERT_TRUE(Export({.dtype = DType::kBFloat16}, 2).ok());
  std::string file = ReadWhole(folder_.at("model.safetensors"));
  EXPECT_THAT(file, HasSubstr(R"("h.1.w":{"dtype":"BF16","shape":[64],"data_offsets":[468,596]})"));
  std::string bytes;
  for (int i = 0; i < 65; ++i) bytes += "\xC0\x3F";
  EXPECT_EQ(file.substr(file.size() - 200 - 130, 130), bytes);
  ASSERT_TRUE(Export({.dtype = DType::kFloat16, .overwrite = true}, 2).ok());
  file = ReadWhole(folder_.at("model.safetensors"));
  bytes.clear();
  for (int i = 0; i < 65; ++i) bytes += std::string("\x00\x3E", 2);
  EXPECT_EQ(file.substr(file.size() - 200 - 130, 130), bytes);
}

TEST_F(ExportTest, WhatWasExportedIsImportedWithItsMoments) {
  ASSERT_TRUE(Export({.optimizer_state = true}, 3).ok());
  EXPECT_THAT(folder_.Names(), ElementsAre("model.safetensors", "optimizer.safetensors"));
  for (uint32_t nodes = 1; nodes <= 2; ++nodes) {
    LayerValues got = Untouched(spec_, 3, 0);
    for (uint32_t node = 0; node < nodes; ++node) {
      NodePart part(spec_, nodes, node, &got);
      const auto run = ImportRun::Open({.path = folder_.path(), .optimizer_state = true}, &part);
      ASSERT_TRUE(run.ok()) << run.status();
      while (!*(*run)->Step()) {
      }
      const auto state = ParseTrainingState(spec_, (*run)->optimizer_files()->metadata(), "f");
      ASSERT_TRUE(state.ok()) << state.status();
      EXPECT_EQ(state->step, 7u);
      EXPECT_EQ(state->loss_scale, 0.1f);
      EXPECT_EQ(state->finite_run, 3u);
      EXPECT_EQ(state->applied, SomeState().applied);
    }
    for (uint32_t array = 0; array < 3; ++array) {
      for (uint32_t layer = 0; layer < 3; ++layer) {
        for (uint32_t tensor = 0; tensor < spec_.layers[layer].tensors.size(); ++tensor) {
          std::vector<float> expected = TensorValues(spec_, values_, layer, tensor, array);
          const bool stored = array == 0 || spec_.layers[layer].tensors[tensor].trainable;
          if (!stored) expected.assign(expected.size(), 0);
          EXPECT_EQ(TensorValues(spec_, got, layer, tensor, array), expected);
        }
      }
    }
  }
}

TEST_F(ExportTest, StateOfAnotherOptimizerOrLayoutIsRefused) {
  Metadata metadata = CommonMetadata(7, "id");
  metadata.merge(StateMetadata(spec_, SomeState()));
  ASSERT_TRUE(ParseTrainingState(spec_, metadata, "f").ok());
  JobSpec other = spec_;
  other.optimizer.state_precision = StatePrecision::kBFloat16;
  EXPECT_EQ(CodeOf(ParseTrainingState(other, metadata, "f").status()), ErrorCode::kSchemaMismatch);
  other = spec_;
  other.shard_elements = 128;
  EXPECT_EQ(CodeOf(ParseTrainingState(other, metadata, "f").status()), ErrorCode::kSchemaMismatch);
  const std::pair<const char*, const char*> bad[] = {
      {"luwu.step", "-1"},
      {"luwu.step", "18446744073709551616"},
      {"luwu.step", ""},
      {"luwu.loss_scale", "nan"},
      {"luwu.loss_scale", "0"},
      {"luwu.loss_scale", "1x"},
      {"luwu.finite_run", "4294967296"},
      {"luwu.applied", "7*5;5,0;0"},
      {"luwu.applied", "7*99999999999;5,0;0,0"},
      {"luwu.applied", "7*5;5,0;0,0;1"},
      {"luwu.applied", "7*5;5,x;0,0"},
      {"luwu.applied", ""},
  };
  for (const auto& [key, text] : bad) {
    Metadata changed = metadata;
    changed[key] = text;
    const Status status = ParseTrainingState(spec_, changed, "f").status();
    EXPECT_EQ(CodeOf(status), ErrorCode::kCorrupt) << key << "=" << text;
    EXPECT_THAT(MessageOf(status), HasSubstr(key));
    changed.erase(key);
    EXPECT_EQ(CodeOf(ParseTrainingState(spec_, changed, "f").status()), ErrorCode::kCorrupt);
  }
}

TEST_F(ExportTest, AStepThatGoesOnEndsTheExportAndTheFolderStaysAsItWas) {
  ASSERT_TRUE(Export({}, 2).ok());
  const std::string before = ReadWhole(folder_.at("model.safetensors"));
  late_node_ = 1;
  const auto names = Export({.overwrite = true}, 2);
  EXPECT_EQ(CodeOf(names.status()), ErrorCode::kState);
  EXPECT_THAT(MessageOf(names.status()), HasSubstr("began at step 7"));
  EXPECT_THAT(MessageOf(names.status()), HasSubstr("is at step 8"));
  EXPECT_EQ(ReadWhole(folder_.at("model.safetensors")), before);
}

TEST_F(ExportTest, AnEarlierExportIsReplacedOnlyWhenAsked) {
  folder_.Write("model-00001-of-00002.safetensors", "old");
  folder_.Write("model-00002-of-00002.safetensors", "old");
  folder_.Write("model.safetensors.index.json", "old");
  folder_.Write("optimizer.safetensors", "old");
  folder_.Write("config.json", "mine");
  folder_.Write("model-of-mine.safetensors", "mine");
  const auto names = Export({}, 1);
  EXPECT_EQ(CodeOf(names.status()), ErrorCode::kAlreadyExists);
  EXPECT_THAT(MessageOf(names.status()), HasSubstr("model-00001-of-00002.safetensors"));
  EXPECT_EQ(folder_.Names().size(), 6u);
  ASSERT_TRUE(Export({.overwrite = true}, 1).ok());
  EXPECT_THAT(folder_.Names(),
              ElementsAre("config.json", "model-of-mine.safetensors", "model.safetensors"));
}

TEST_F(ExportTest, WhatAKilledExportLeftIsRemovedByTheNextOverwrite) {
  auto begun = BeginExport({.folder = folder_.path()}, spec_, 2, SomeState());
  ASSERT_TRUE(begun.ok());
  EXPECT_THAT(folder_.Names(), ElementsAre(begun->draft));
  begun->lock.Reset();  // as a kill does
  ASSERT_TRUE(Export({.overwrite = true}, 1).ok());
  EXPECT_THAT(folder_.Names(), ElementsAre("model.safetensors"));
}

TEST_F(ExportTest, AbandonRemovesTheDraftAndNothingElse) {
  const auto begun = BeginExport({.folder = folder_.path()}, spec_, 2, SomeState());
  ASSERT_TRUE(begun.ok());
  folder_.Write("keep", "x");
  EXPECT_EQ(CodeOf(AbandonExport(folder_.path(), "keep", true)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(AbandonExport(folder_.path(), "../" + begun->draft, true)),
            ErrorCode::kInvalidArgument);
  ASSERT_TRUE(AbandonExport(folder_.path(), begun->draft, true).ok());
  EXPECT_THAT(folder_.Names(), ElementsAre("keep"));
}

TEST_F(ExportTest, OptionsThatCannotBeAreRefused) {
  const auto code = [this](ExportOptions options) {
    return CodeOf(BeginExport(options, spec_, 2, SomeState()).status());
  };
  EXPECT_EQ(code({.folder = "relative"}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.folder = folder_.at("no/parent")}), ErrorCode::kNotFound);
  EXPECT_EQ(code({.folder = folder_.path(), .dtype = DType::kFloat64}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.folder = folder_.path(), .file_bytes_max = 1000}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.folder = folder_.path(), .dtype = DType::kBFloat16, .optimizer_state = true}),
            ErrorCode::kInvalidArgument);
  EXPECT_THAT(folder_.Names(), ElementsAre());
}

TEST(ExportLayout, FilesStayBelowTheLimitAndTheIndexNamesThem) {
  LayoutRequest request;
  request.base = "model";
  request.metadata = {{"format", "pt"}};
  request.file_bytes_max = 2000;
  for (int i = 0; i < 20; ++i) {
    request.tensors.push_back({"t" + std::to_string(i), FileDType::kF32, {100}, 0, 0});
  }
  request.tensors.push_back({"large", FileDType::kF32, {1000}, 0, 0});
  request.tensors.push_back({"last", FileDType::kF32, {1}, 0, 0});
  const auto layout = LayOut(request);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->tensor_bytes, 20u * 400 + 4000 + 4);
  uint64_t tensors = 0;
  for (size_t i = 0; i < layout->files.size(); ++i) {
    const LaidOutFile& file = layout->files[i];
    EXPECT_EQ(file.name,
              fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, layout->files.size()));
    const auto header = ParseSafetensorsHeader(file.header.substr(8), file.bytes, file.name);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_TRUE(file.bytes <= 2000 || header->tensors.size() == 1) << file.name;
    EXPECT_EQ(header->data_offset % 8, 0u);
    for (const TensorEntry& tensor : header->tensors) {
      EXPECT_THAT(layout->index, HasSubstr(fmt::format("\"{}\": \"{}\"", tensor.name, file.name)));
      ++tensors;
    }
  }
  EXPECT_EQ(tensors, 22u);
  EXPECT_THAT(layout->index, HasSubstr("\"total_size\": 12004"));
}

TEST(ExportLayout, ATensorThatNoFileCouldHoldIsNamed) {
  LayoutRequest request;
  request.base = "model";
  request.tensors = {{"huge", FileDType::kF32, {~uint64_t{0}, 3}, 0, 0}};
  EXPECT_THAT(MessageOf(LayOut(request).status()), HasSubstr("'huge'"));
}

}  // namespace
}  // namespace luwu::interchange
