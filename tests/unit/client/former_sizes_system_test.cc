// A program that was compiled against the first release of this ABI level, whose structs were
// smaller: what it passes is taken as it meant it, and nothing behind its structs is touched.
#include <cstring>

#include "tests/unit/client/system_world.h"

namespace luwu::testing {
namespace {

constexpr uint32_t kTimeoutMs = 20'000;
constexpr uint32_t kFormerJob = 80;
constexpr uint32_t kFormerHyper = 64;
constexpr uint32_t kFormerInfo = 56;
constexpr uint32_t kFormerResult = 528;
constexpr unsigned char kForeign = 0xa5;  // whatever lies behind

// The bytes of `values` as the former release had them, then foreign ones.
template <typename Struct>
Struct Former(const Struct& values, uint32_t size) {
  Struct out;
  std::memset(&out, kForeign, sizeof out);
  std::memcpy(&out, &values, size);
  out.struct_size = size;
  return out;
}

template <typename Struct>
bool IsUntouchedBehind(const Struct& value, uint32_t size) {
  std::vector<unsigned char> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  for (size_t i = size; i < bytes.size(); ++i) {
    if (bytes[i] != kForeign) return false;
  }
  return true;
}

class FormerSizes : public ::testing::Test {
 protected:
  FormerSizes() {
    job_.groups = 2;
    job_.layers[3].tensors[1].group = 1;
    cxx::check(luwu_init(LUWU_ABI_VERSION));
  }

  luwu_session Open(const luwu_job_spec& job) {
    luwu_open_options options = {};
    options.struct_size = sizeof options;
    options.endpoints = endpoints_.c_str();
    options.job = &job;
    luwu_session session = 0;
    cxx::check(luwu_session_open(&options, &session));
    return session;
  }

  // All elements get the gradient 1; groups learn at different rates.
  void Step(luwu_session session, const luwu_hyper* groups, luwu_commit_result* result) {
    cxx::check(luwu_begin_step(session, 0, groups, 2, kTimeoutMs));
    const std::vector<float> ones(700, 1.0f);
    for (uint32_t layer = 0; layer < 5; ++layer) {
      const luwu_segment segment =
          cxx::segment(const_cast<float*>(ones.data()), ElementsOf(job_.layers[layer]));
      cxx::check(luwu_push(session, layer, &segment, 1, LUWU_PUSH_CLOSE, kTimeoutMs));
    }
    cxx::check(luwu_commit(session, 0, result, kTimeoutMs));
  }

  void Load(luwu_session session) {
    for (uint32_t layer = 0; layer < job_.layers.size(); ++layer) {
      const std::vector<float> zeros(ElementsOf(job_.layers[layer]));
      cxx::check(luwu_load(session, layer, 0, zeros.data(), zeros.size(), kTimeoutMs));
    }
    cxx::check(luwu_finish_load(session, 0, kTimeoutMs));
  }

  const DaemonCluster daemons_{LUWU_LUWUD, {}};
  const std::string endpoints_ = daemons_.endpoints();
  cxx::JobSpec job_ = SmallJob(1);
};

TEST_F(FormerSizes, TrainAsTheyDidAndNothingBehindThemIsTouched) {
  job_.optimizer = LUWU_SGD;
  const cxx::CJobSpec spec(job_);
  const luwu_session session = Open(Former(*spec.get(), kFormerJob));
  Load(session);

  // An array whose entries are as far apart as the former release put them.
  std::vector<unsigned char> groups(2 * kFormerHyper);
  for (uint32_t group = 0; group < 2; ++group) {
    luwu_hyper values = cxx::sgd(group == 0 ? 0.5 : 0.25);
    values.struct_size = kFormerHyper;
    std::memcpy(groups.data() + group * kFormerHyper, &values, kFormerHyper);
  }
  luwu_commit_result result = Former(luwu_commit_result{}, kFormerResult);
  Step(session, static_cast<const luwu_hyper*>(static_cast<const void*>(groups.data())), &result);
  EXPECT_EQ(result.outcome, LUWU_APPLIED);
  EXPECT_EQ(result.struct_size, kFormerResult);
  EXPECT_TRUE(IsUntouchedBehind(result, kFormerResult));

  std::vector<float> masters(577);
  cxx::check(luwu_read(session, 3, LUWU_MASTER, 0, masters.data(), masters.size(), kTimeoutMs));
  EXPECT_EQ(masters[0], -0.5f);
  EXPECT_EQ(masters[500], -0.25f);

  luwu_session_info info = Former(luwu_session_info{}, kFormerInfo);
  cxx::check(luwu_session_get_info(session, &info));
  EXPECT_EQ(info.current_step, 1u);
  EXPECT_EQ(info.struct_size, kFormerInfo);
  EXPECT_TRUE(IsUntouchedBehind(info, kFormerInfo));
  cxx::check(luwu_session_close(session));
}

TEST_F(FormerSizes, NewAndOldCallersAgreeOnTheJob) {
  const cxx::CJobSpec spec(job_);  // no option that the former release did not have
  const luwu_session first = Open(Former(*spec.get(), kFormerJob));
  Load(first);
  luwu_open_options options = {};
  options.struct_size = sizeof options;
  options.endpoints = endpoints_.c_str();
  options.job = spec.get();
  options.restart_count = 1;
  luwu_session second = 0;
  EXPECT_EQ(luwu_session_open(&options, &second), LUWU_OK) << luwu_last_error();
  EXPECT_EQ(luwu_session_close(second), LUWU_OK);
  luwu_session_close(first);
}

TEST_F(FormerSizes, OneArrayHasEntriesOfOneSize) {
  const cxx::CJobSpec spec(job_);
  const luwu_session session = Open(*spec.get());
  Load(session);
  luwu_hyper groups[2] = {cxx::adamw(1e-3), cxx::adamw(1e-3)};
  groups[1].struct_size = kFormerHyper;
  EXPECT_EQ(luwu_begin_step(session, 0, groups, 2, kTimeoutMs), LUWU_E_BAD_STRUCT);
  EXPECT_NE(std::string(luwu_last_error()).find("groups[1]"), std::string::npos);
  cxx::check(luwu_session_close(session));
}

}  // namespace
}  // namespace luwu::testing
