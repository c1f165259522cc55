// Import of files written by hand into the parts of several nodes.
#include "server/interchange/import_run.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/interchange/file_maker.h"
#include "tests/unit/interchange/model.h"

namespace luwu::interchange {
namespace {

using testing::HasSubstr;

struct Tensor {
  std::string name;
  std::string dtype;
  std::string shape;
  std::string bytes;
};

std::string FileOf(const std::vector<Tensor>& tensors) {
  std::string json = "{";
  std::string data;
  for (const Tensor& tensor : tensors) {
    if (json.size() > 1) json += ",";
    json += fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", tensor.name,
                        tensor.dtype, tensor.shape, data.size(), data.size() + tensor.bytes.size());
    data += tensor.bytes;
  }
  return FileBytes(json + "}", data);
}

class ImportRunTest : public testing::Test {
 protected:
  // The model's tensors, not in the order of the job.
  std::vector<Tensor> Model() const {
    const auto bytes = [this](uint32_t layer, uint32_t tensor) {
      return FloatBytes(TensorValues(spec_, wanted_, layer, tensor));
    };
    return {{"table.w", "F32", "[100]", bytes(2, 0)},    {"h.0.w", "F32", "[10,12]", bytes(0, 0)},
            {"h.0.frozen", "F32", "[100]", bytes(0, 2)}, {"h.0.b", "F32", "[13]", bytes(0, 1)},
            {"h.1.w", "F32", "[64]", bytes(1, 1)},       {"h.1.s", "F32", "[]", bytes(1, 0)}};
  }
  Status Import(const ImportOptions& options, uint32_t nodes) {
    got_ = Untouched(spec_, 3);
    for (uint32_t node = 0; node < nodes; ++node) {
      NodePart part(spec_, nodes, node, &got_);
      ASSIGN_OR_RETURN(const auto run, ImportRun::Open(options, &part));
      for (bool done = false; !done;) {
        ASSIGN_OR_RETURN(done, run->Step());
      }
      EXPECT_EQ(run->done_bytes(), run->total_bytes());
    }
    return OkStatus();
  }
  Status ImportFile(const std::string& bytes, ImportOptions options = {}) {
    options.path = folder_.Write("model.safetensors", bytes);
    return Import(options, 2);
  }
  void ExpectModel(const std::vector<std::string>& missing = {}) {
    for (uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
      std::vector<float> expected(spec_.layers[layer].elements, -1);  // gaps stay untouched
      for (uint32_t tensor = 0; tensor < spec_.layers[layer].tensors.size(); ++tensor) {
        const TensorSpec& of = spec_.layers[layer].tensors[tensor];
        std::vector<float> values = TensorValues(spec_, wanted_, layer, tensor);
        if (std::count(missing.begin(), missing.end(), of.name) > 0) {
          std::fill(values.begin(), values.end(), 0.0f);
        }
        std::copy(values.begin(), values.end(),
                  expected.begin() + static_cast<ptrdiff_t>(of.offset));
      }
      EXPECT_EQ(got_.at({layer, 0}), expected) << spec_.layers[layer].name;
    }
  }

  const JobSpec spec_ = SmallSpec();
  const LayerValues wanted_ = Different(spec_, 3);
  LayerValues got_;
  Folder folder_;
};

TEST_F(ImportRunTest, OneFileGoesToWhereTensorsLieOnAnyNumberOfNodes) {
  const std::string path = folder_.Write("any.safetensors", FileOf(Model()));
  for (uint32_t nodes = 1; nodes <= 4; ++nodes) {
    ASSERT_TRUE(Import({.path = path}, nodes).ok());
    ExpectModel();
  }
}

TEST_F(ImportRunTest, AFolderWithAnIndexIsReadThroughTheIndex) {
  const std::vector<Tensor> all = Model();
  folder_.Write("model-1.safetensors", FileOf({all[0], all[1], all[2]}));
  folder_.Write("model-2.safetensors", FileOf({all[3], all[4], all[5]}));
  const std::string index =
      folder_.Write("model.safetensors.index.json",
                    R"({"weight_map":{"table.w":"model-1.safetensors","h.0.w":"model-1.safetensors",
          "h.0.frozen":"model-1.safetensors","h.0.b":"model-2.safetensors",
          "h.1.w":"model-2.safetensors","h.1.s":"model-2.safetensors"}})");
  ASSERT_TRUE(Import({.path = folder_.path()}, 2).ok());
  ExpectModel();
  ASSERT_TRUE(Import({.path = index}, 3).ok());
  ExpectModel();
}

TEST_F(ImportRunTest, AnIndexThatLiesAboutItsFilesIsRefused) {
  folder_.Write("f", FileOf(Model()));
  const std::string index = folder_.Write("i.json", R"({"weight_map":{"nope":"f"}})");
  const Status lies = Import({.path = index}, 1);
  EXPECT_EQ(CodeOf(lies), ErrorCode::kCorrupt);
  EXPECT_THAT(MessageOf(lies), HasSubstr("'nope' is in 'f', but it is not"));
  folder_.Write("i.json", R"({"weight_map":{"h.0.w":"gone"}})");
  const Status gone = Import({.path = index}, 1);
  EXPECT_EQ(CodeOf(gone), ErrorCode::kNotFound);
  EXPECT_THAT(MessageOf(gone), HasSubstr("/gone'"));
  folder_.Write("g", FileOf(Model()));
  folder_.Write("i.json", R"({"weight_map":{"h.0.w":"f","h.0.b":"g"}})");
  EXPECT_THAT(MessageOf(Import({.path = index}, 1)), HasSubstr("and in"));
}

TEST_F(ImportRunTest, HalfPrecisionIsWidened) {
  // 1.5 and -2 in bfloat16 and float16, by hand.
  std::string bf16, fp16;
  std::vector<float> expected;
  for (int i = 0; i < 32; ++i) {
    bf16 += std::string("\xC0\x3F\x00\xC0", 4);
    fp16 += std::string("\x00\x3E\x00\xC0", 4);
    expected.insert(expected.end(), {1.5f, -2.0f});
  }
  for (const auto& [dtype, bytes] : {std::pair("BF16", bf16), std::pair("F16", fp16)}) {
    std::vector<Tensor> tensors = Model();
    tensors[4].dtype = dtype;
    tensors[4].bytes = bytes;
    ASSERT_TRUE(ImportFile(FileOf(tensors)).ok());
    EXPECT_EQ(TensorValues(spec_, got_, 1, 1), expected) << dtype;
  }
}

TEST_F(ImportRunTest, TensorsThatDoNotFitAreNamedWithTheirFile) {
  std::vector<Tensor> tensors = Model();
  tensors[1].shape = "[12,10]";
  Status status = ImportFile(FileOf(tensors));
  EXPECT_EQ(CodeOf(status), ErrorCode::kSchemaMismatch);
  EXPECT_THAT(MessageOf(status), HasSubstr("'h.0.w' has shape [12, 10] in"));
  EXPECT_THAT(MessageOf(status), HasSubstr("model.safetensors', but [10, 12] in the job"));
  tensors = Model();
  tensors[3] = {"h.0.b", "I32", "[13]", tensors[3].bytes};
  status = ImportFile(FileOf(tensors));
  EXPECT_EQ(CodeOf(status), ErrorCode::kSchemaMismatch);
  EXPECT_THAT(MessageOf(status), HasSubstr("'h.0.b' in"));
  EXPECT_THAT(MessageOf(status), HasSubstr("dtype I32"));
  EXPECT_EQ(got_, Untouched(spec_, 3)) << "nothing is written before all fits";
}

TEST_F(ImportRunTest, MissingTensorsAreAnErrorUnlessAllowed) {
  std::vector<Tensor> tensors = Model();
  tensors.erase(tensors.begin() + 3);
  const Status status = ImportFile(FileOf(tensors));
  EXPECT_EQ(CodeOf(status), ErrorCode::kSchemaMismatch);
  EXPECT_THAT(MessageOf(status), HasSubstr("lacks 1 of the tensors"));
  EXPECT_THAT(MessageOf(status), HasSubstr("'h.0.b'"));
  ASSERT_TRUE(ImportFile(FileOf(tensors), {.allow_missing = true}).ok());
  ExpectModel({"h.0.b"});
}

TEST_F(ImportRunTest, UnexpectedTensorsAreAnErrorUnlessAllowed) {
  std::vector<Tensor> tensors = Model();
  tensors.push_back({"extra.ids", "I64", "[1]", "12345678"});
  const Status status = ImportFile(FileOf(tensors));
  EXPECT_EQ(CodeOf(status), ErrorCode::kSchemaMismatch);
  EXPECT_THAT(MessageOf(status), HasSubstr("'extra.ids'"));
  ASSERT_TRUE(ImportFile(FileOf(tensors), {.allow_unexpected = true}).ok());
  ExpectModel();
}

TEST_F(ImportRunTest, AnotherModelIsRefusedWhateverIsAllowed) {
  const Status status = ImportFile(FileOf({{"a", "F32", "[1]", "1234"}}),
                                   {.allow_missing = true, .allow_unexpected = true});
  EXPECT_EQ(CodeOf(status), ErrorCode::kSchemaMismatch);
  EXPECT_THAT(MessageOf(status), HasSubstr("none of the tensors"));
}

TEST_F(ImportRunTest, PathsThatCannotBeReadSayWhy) {
  EXPECT_EQ(CodeOf(Import({.path = "model.safetensors"}, 1)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Import({.path = folder_.path() + "/../x"}, 1)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Import({.path = folder_.at("no")}, 1)), ErrorCode::kNotFound);
  const Status empty = Import({.path = folder_.path()}, 1);
  EXPECT_EQ(CodeOf(empty), ErrorCode::kNotFound);
  EXPECT_THAT(MessageOf(empty), HasSubstr("model.safetensors.index.json"));
  EXPECT_EQ(CodeOf(Import({.path = "/dev/null"}, 1)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Import({.path = folder_.Write("short", "1234567")}, 1)), ErrorCode::kCorrupt);
}

TEST_F(ImportRunTest, AFileThatChangesWhileItIsReadIsRefused) {
  const std::string path = folder_.Write("model.safetensors", FileOf(Model()));
  got_ = Untouched(spec_, 3);
  NodePart part(spec_, 1, 0, &got_);
  const auto run = ImportRun::Open({.path = path}, &part);
  ASSERT_TRUE(run.ok());
  folder_.Write("model.safetensors", FileOf({{"a", "F32", "[1]", "1234"}}));
  EXPECT_EQ(CodeOf((*run)->Step().status()), ErrorCode::kCorrupt);
}

TEST_F(ImportRunTest, AFileThatIsOverwrittenInPlaceAfterItWasReadIsRefused) {
  const std::string path = folder_.Write("model.safetensors", FileOf(Model()));
  struct stat before = {};
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  got_ = Untouched(spec_, 3);
  NodePart part(spec_, 1, 0, &got_);
  const auto run = ImportRun::Open({.path = path}, &part);
  ASSERT_TRUE(run.ok());
  while ((*run)->done_bytes() < (*run)->total_bytes()) ASSERT_TRUE((*run)->Step().ok());
  // The last value; again until the clock of the file system has gone on.
  struct stat after = before;
  while (after.st_ctim.tv_sec == before.st_ctim.tv_sec &&
         after.st_ctim.tv_nsec == before.st_ctim.tv_nsec) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-4, std::ios::end);
    file.write("1234", 4);
    file.close();
    // Whoever copies a file may give it its old time.
    const timespec times[] = {before.st_atim, before.st_mtim};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    ASSERT_EQ(::stat(path.c_str(), &after), 0);
  }
  const Status status = (*run)->Step().status();
  EXPECT_EQ(CodeOf(status), ErrorCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), HasSubstr(path + "' was changed while it was being read"));
}

TEST_F(ImportRunTest, FilesWithEqualHeadersAndOtherDataHaveAnotherFingerprint) {
  // Larger than the samples together, other in one value only: in each sampled block, and in one
  // that is not.
  JobSpec spec = spec_;
  spec.layers = {{"l", 200'000, {{"w", {200'000}, 0, 0, true}}}};
  std::vector<float> values(200'000, 1.0f);
  const auto fingerprint = [&] {
    const std::string path =
        folder_.Write("model.safetensors", FileOf({{"w", "F32", "[200000]", FloatBytes(values)}}));
    LayerValues got = Untouched(spec, 3);
    NodePart part(spec, 1, 0, &got);
    const auto run = ImportRun::Open({.path = path}, &part);
    EXPECT_TRUE(run.ok()) << run.status();
    while (!*(*run)->Step()) {
    }
    return (*run)->fingerprint();
  };
  const uint64_t before = fingerprint();
  EXPECT_EQ(fingerprint(), before);
  const uint64_t header = FileOf({{"w", "F32", "[200000]", FloatBytes(values)}}).size() - 800'000;
  const uint64_t last = header + 800'000 - 4096;  // offset of the last block
  for (uint64_t i = 0; i < 16; ++i) {
    const uint64_t offset = last * i / 15 + 2048;
    float& value = values[(offset - header) / 4];
    value = 2;
    EXPECT_NE(fingerprint(), before) << i;
    value = 1;
  }
  values[5000] = 2;
  EXPECT_EQ(fingerprint(), before) << "samples are not the whole file";
}

}  // namespace
}  // namespace luwu::interchange
