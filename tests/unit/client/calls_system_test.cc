// Single calls against real daemons: what fetches give, what misuse is answered with.
#include <nlohmann/json.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "tests/unit/client/system_world.h"

namespace luwu::testing {
namespace {

constexpr uint32_t kShortMs = 200;

// One worker, two daemons, weights loaded, over each transport.
class Calls : public ::testing::TestWithParam<luwu_transport> {
 protected:
  cxx::Session Open(const cxx::JobSpec& job, uint32_t rank = 0, uint64_t restart_count = 0) {
    return cxx::Session({.endpoints = cluster_.endpoints(),
                         .job = job,
                         .rank = rank,
                         .restart_count = restart_count,
                         .transport = GetParam(),
                         .node_timeout_ms = 2000});
  }
  cxx::Session OpenLoaded() {
    cxx::Session session = Open(job_);
    LoadAll(session, job_);
    return session;
  }
  // One whole step without any gradient.
  static void EmptyStep(cxx::Session& session, uint64_t step) {
    session.begin_step(step, {cxx::adamw(1e-2)});
    for (const uint32_t layer : {0u, 1u, 2u, 3u, 4u}) session.close_layer(layer);
    session.commit(step);
  }
  void ExpectError(int32_t status, int32_t expected, const std::vector<std::string>& texts) {
    EXPECT_EQ(status, expected) << luwu_last_error();
    for (const std::string& text : texts) {
      EXPECT_NE(std::string(luwu_last_error()).find(text), std::string::npos)
          << "\"" << text << "\" not in: " << luwu_last_error();
    }
  }

  const cxx::JobSpec job_ = SmallJob(1);
  DaemonCluster cluster_{LUWU_LUWUD, {.nodes = 2}};
};

// Bug: "fenced", with a list of what may have happened. luwu.h promises the stale epoch.
TEST_P(Calls, AForcedDeletionEndsEveryCallWithStaleEpochNamingIt) {
  std::vector<float> values(677);
  const luwu_segment segment = cxx::segment(values.data(), 677);
  const luwu_hyper group = cxx::adamw(1e-2);
  const std::vector<std::function<int32_t(luwu_session)>> calls = {
      [&](luwu_session s) { return luwu_begin_step(s, 0, &group, 1, 20'000); },
      [&](luwu_session s) { return luwu_read(s, 3, LUWU_MASTER, 0, values.data(), 677, 20'000); },
      [&](luwu_session s) { return luwu_fetch(s, 3, 1, &segment, 1, 20'000); },
  };
  for (const auto& first : calls) {  // whichever call hears of it first
    cxx::Session session = OpenLoaded();
    cxx::check(luwu_job_delete(cluster_.endpoints().c_str(), job_.name.c_str(), 1, 20'000));
    ExpectError(first(session.handle()), LUWU_E_STALE_EPOCH, {"small"});
    for (const auto& call : calls) ExpectError(call(session.handle()), LUWU_E_STALE_EPOCH, {});
    EXPECT_EQ(luwu_push(session.handle(), 3, &segment, 1, 0, 20'000), LUWU_E_STALE_EPOCH);
  }
}

TEST_P(Calls, FetchFillsAnySubsetOfALayerAndNothingElse) {
  for (const uint32_t verify : {0u, 1u, 2u}) {
    cxx::Session session({.endpoints = cluster_.endpoints(),
                          .job = job_,
                          .restart_count = verify,
                          .transport = GetParam(),
                          .verify_served_crc = verify});
    if (verify == 0) LoadAll(session, job_);
    const std::vector<float> expected = Values(1003, 677);
    const struct {
      uint64_t offset, count;
    } ranges[] = {{0, 677}, {0, 1}, {676, 1}, {63, 2}, {64, 64}, {1, 600}, {130, 3}};
    for (const auto& range : ranges) {
      std::vector<float> out(range.count + 2, -7);
      session.fetch(3, 0, {cxx::segment(&out[1], range.count, range.offset)});
      EXPECT_EQ(out.front(), -7);
      EXPECT_EQ(out.back(), -7);
      for (uint64_t i = 0; i < range.count; ++i) {
        ASSERT_EQ(out[i + 1], expected[range.offset + i]) << range.offset << "+" << i;
      }
    }
    // Several pieces of one shard, unsorted, of different types.
    std::vector<float> a(5), b(100);
    std::vector<uint16_t> half(40);
    session.fetch(3, 0,
                  {cxx::segment(b.data(), 100, 200), cxx::segment(a.data(), 5, 3),
                   cxx::segment(half.data(), LUWU_BFLOAT16, 40, 60)});
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i], expected[3 + i]);
    for (size_t i = 0; i < b.size(); ++i) EXPECT_EQ(b[i], expected[200 + i]);
    for (size_t i = 0; i < half.size(); ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, &expected[60 + i], 4);
      const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // nearest even
      EXPECT_EQ(half[i], rounded);
    }
  }
}

TEST_P(Calls, FutureVersionEndsInADeadlineThatNamesLayerVersionAndNewest) {
  cxx::Session session = OpenLoaded();
  float value = 0;
  const luwu_segment segment = cxx::segment(&value, 1);
  ExpectError(luwu_fetch(session.handle(), 3, 1, &segment, 1, kShortMs), LUWU_E_DEADLINE,
              {"'many'", "version 1", "newest is 0"});
}

TEST_P(Calls, FetchBeforeAnythingIsLoadedSaysSo) {
  cxx::Session session = Open(job_);
  float value = 0;
  const luwu_segment segment = cxx::segment(&value, 1);
  ExpectError(luwu_fetch(session.handle(), 0, 0, &segment, 1, kShortMs), LUWU_E_DEADLINE,
              {"no version is loaded"});
  ExpectError(luwu_wait_loaded(session.handle(), kShortMs), LUWU_E_DEADLINE, {"initial weights"});
}

TEST_P(Calls, VersionsBeforeThePreviousOneAreStale) {
  cxx::Session session = OpenLoaded();
  for (uint64_t step = 0; step < 3; ++step) EmptyStep(session, step);
  std::vector<float> values(65);
  const luwu_segment segment = cxx::segment(values.data(), 65);
  const auto fetch = [&](uint64_t version) {
    return luwu_fetch(session.handle(), 2, version, &segment, 1, kShortMs);
  };
  EXPECT_EQ(fetch(3), LUWU_OK) << luwu_last_error();
  EXPECT_EQ(values, Values(1002, 65));
  EXPECT_EQ(fetch(2), LUWU_OK) << luwu_last_error();
  ExpectError(fetch(1), LUWU_E_STALE_VERSION, {"'above'", "version 1"});
  ExpectError(fetch(0), LUWU_E_STALE_VERSION, {"'above'"});
  // Frozen: one content for all versions.
  std::vector<float> cold(200);
  session.fetch(5, 0, {cxx::segment(cold.data(), 200)});
  session.fetch(5, 99, {cxx::segment(cold.data(), 200)});
  EXPECT_EQ(cold, Values(1005, 200));
}

TEST_P(Calls, PushMisuse) {
  cxx::Session session = OpenLoaded();
  std::vector<float> values(677);
  const luwu_segment whole = cxx::segment(values.data(), 65);
  const luwu_segment part = cxx::segment(values.data(), 64);
  const luwu_segment many = cxx::segment(values.data(), 576);
  const luwu_segment cold = cxx::segment(values.data(), 200);
  const luwu_session s = session.handle();
  ExpectError(luwu_push(s, 2, &whole, 1, 0, kShortMs), LUWU_E_STATE, {"luwu_begin_step"});
  session.begin_step(0, {cxx::adamw(1e-2)});
  ExpectError(luwu_push(s, 5, &cold, 1, 0, kShortMs), LUWU_E_INVALID_ARGUMENT,
              {"'cold'", "frozen"});
  ExpectError(luwu_close_layer(s, 5, kShortMs), LUWU_E_INVALID_ARGUMENT, {"frozen"});
  ExpectError(luwu_push(s, 2, &part, 1, 0, kShortMs), LUWU_E_INVALID_ARGUMENT, {"'above.w'"});
  ExpectError(luwu_push(s, 3, &many, 1, 0, kShortMs), LUWU_E_INVALID_ARGUMENT, {"'many.b'"});
  ExpectError(luwu_push(s, 2, &whole, 1, 2, kShortMs), LUWU_E_INVALID_ARGUMENT, {"flags"});
  ExpectError(luwu_push(s, 6, &whole, 1, 0, kShortMs), LUWU_E_INVALID_ARGUMENT, {"layer 6"});
  ExpectError(luwu_push(s, 2, nullptr, 1, 0, kShortMs), LUWU_E_INVALID_ARGUMENT, {"segments"});
  ExpectError(luwu_push(s, 2, &whole, 0, 0, kShortMs), LUWU_E_INVALID_ARGUMENT, {"segments"});
  luwu_segment wrong = whole;
  wrong.struct_size = 8;
  ExpectError(luwu_push(s, 2, &wrong, 1, 0, kShortMs), LUWU_E_BAD_STRUCT, {"segments[0]"});
  ExpectError(luwu_fetch(s, 2, 0, &wrong, 1, kShortMs), LUWU_E_BAD_STRUCT, {"segments[0]"});
  wrong = whole;
  wrong.dtype = LUWU_FLOAT64;
  ExpectError(luwu_push(s, 2, &wrong, 1, 0, kShortMs), LUWU_E_UNSUPPORTED, {"dtype"});
  session.push(2, {whole}, LUWU_PUSH_CLOSE);
  ExpectError(luwu_push(s, 2, &whole, 1, 0, kShortMs), LUWU_E_LAYER_CLOSED, {"'above'"});
  ExpectError(luwu_close_layer(s, 2, kShortMs), LUWU_E_LAYER_CLOSED, {"'above'"});
  luwu_op op = 0;
  ExpectError(luwu_push_async(s, 2, &whole, 1, 0, kShortMs, &op), LUWU_E_LAYER_CLOSED, {});
  EXPECT_EQ(op, 0u);
}

TEST_P(Calls, StepMisuse) {
  cxx::Session session = OpenLoaded();
  const luwu_session s = session.handle();
  luwu_commit_result result = {};
  result.struct_size = sizeof result;
  ExpectError(luwu_commit(s, 0, &result, kShortMs), LUWU_E_STATE, {"not open"});
  luwu_hyper groups[2] = {cxx::adamw(1e-2), cxx::adamw(1e-2)};
  ExpectError(luwu_begin_step(s, 0, groups, 2, kShortMs), LUWU_E_INVALID_ARGUMENT, {"1 groups"});
  ExpectError(luwu_begin_step(s, 0, nullptr, 1, kShortMs), LUWU_E_INVALID_ARGUMENT, {"groups"});
  groups[0].beta1 = 2;
  ExpectError(luwu_begin_step(s, 0, groups, 1, kShortMs), LUWU_E_INVALID_ARGUMENT, {"beta"});
  groups[0].struct_size = 1;
  ExpectError(luwu_begin_step(s, 0, groups, 1, kShortMs), LUWU_E_BAD_STRUCT, {"groups[0]"});
  groups[0] = cxx::adamw(1e-2);
  ExpectError(luwu_begin_step(s, 7, groups, 1, kShortMs), LUWU_E_STEP_MISMATCH, {"7"});
  session.begin_step(0, {groups[0]});
  session.begin_step(0, {groups[0]});  // harmless
  ExpectError(luwu_begin_step(s, 1, groups, 1, kShortMs), LUWU_E_STATE, {"step 0 is open"});
  ExpectError(luwu_commit(s, 0, &result, kShortMs), LUWU_E_STATE, {"'below'", "not closed"});
  ExpectError(luwu_commit(s, 0, nullptr, kShortMs), LUWU_E_INVALID_ARGUMENT, {"result"});
  result.struct_size = 4;
  ExpectError(luwu_commit(s, 0, &result, kShortMs), LUWU_E_BAD_STRUCT, {"result"});
  for (const uint32_t layer : {0u, 1u, 2u, 3u, 4u}) session.close_layer(layer);
  EXPECT_EQ(session.commit(0).outcome, LUWU_APPLIED);
  EXPECT_EQ(session.commit(0).outcome, LUWU_APPLIED);  // the remembered answer
  EXPECT_EQ(session.info().current_step, 1u);
}

TEST_P(Calls, NonFiniteGradientSkipsTheStepAndNamesIt) {
  cxx::Session session = OpenLoaded();
  session.begin_step(0, {cxx::adamw(1e-2)});
  std::vector<float> gradient(677, 0.5f);
  gradient[550] = __builtin_nanf("");
  session.push(3, {cxx::segment(gradient.data(), 677)}, LUWU_PUSH_CLOSE);
  for (const uint32_t layer : {0u, 1u, 2u, 4u}) session.close_layer(layer);
  const luwu_commit_result result = session.commit(0);
  EXPECT_EQ(result.outcome, LUWU_SKIPPED);
  EXPECT_NE(std::string(result.culprit).find("many.b"), std::string::npos) << result.culprit;
  std::vector<float> weights(677);
  session.fetch(3, 1, {cxx::segment(weights.data(), 677)});
  EXPECT_EQ(weights, Values(1003, 677));
}

TEST_P(Calls, FailedStepEndsTheJob) {
  cxx::JobSpec job = SmallJob(1);
  job.on_non_finite = LUWU_NON_FINITE_FAIL;
  cxx::Session session = Open(job);
  LoadAll(session, job);
  session.begin_step(0, {cxx::adamw(1e-2)});
  std::vector<float> gradient(65, __builtin_inff());
  session.push(2, {cxx::segment(gradient.data(), 65)}, LUWU_PUSH_CLOSE);
  for (const uint32_t layer : {0u, 1u, 3u, 4u}) session.close_layer(layer);
  EXPECT_EQ(session.commit(0).outcome, LUWU_FAILED);
  const luwu_hyper group = cxx::adamw(1e-2);
  ExpectError(luwu_begin_step(session.handle(), 1, &group, 1, kShortMs), LUWU_E_JOB_FAILED,
              {"above"});
}

TEST_P(Calls, StaleAndForeignHandles) {
  luwu_session stale = 0;
  luwu_op op = 0;
  std::vector<float> values(65);
  const luwu_segment segment = cxx::segment(values.data(), 65);
  {
    cxx::Session session = OpenLoaded();
    stale = session.handle();
    cxx::check(luwu_fetch_async(stale, 2, 0, &segment, 1, kShortMs, &op));
    EXPECT_EQ(luwu_session_close(op), LUWU_E_BAD_HANDLE);      // an operation
    EXPECT_EQ(luwu_wait(stale, kShortMs), LUWU_E_BAD_HANDLE);  // a session
    EXPECT_EQ(luwu_push_inplace_end(op), LUWU_E_BAD_HANDLE);   // another kind of operation
    cxx::check(luwu_wait(op, 10'000));
    EXPECT_EQ(luwu_wait(op, 0), LUWU_E_BAD_HANDLE);
    EXPECT_EQ(luwu_test(op), LUWU_E_BAD_HANDLE);
  }
  EXPECT_EQ(luwu_fetch(stale, 2, 0, &segment, 1, kShortMs), LUWU_E_BAD_HANDLE);
  EXPECT_EQ(luwu_session_close(stale), LUWU_E_BAD_HANDLE);
}

TEST_P(Calls, ViewShowsTheWeightsWhereTheyLie) {
  cxx::Session session = OpenLoaded();
  if (GetParam() != LUWU_TRANSPORT_SHM) {
    uint32_t count = 100;
    luwu_view_piece pieces[100];
    ExpectError(luwu_fetch_view(session.handle(), 3, 0, pieces, &count, kShortMs),
                LUWU_E_UNSUPPORTED, {TransportName(GetParam())});
    return;
  }
  const std::vector<luwu_view_piece> pieces = session.view(3, 0);
  const std::vector<float> expected = Values(1003, 677);
  uint64_t at = 0;
  for (const luwu_view_piece& piece : pieces) {
    ASSERT_EQ(piece.offset, at);
    EXPECT_EQ(std::memcmp(piece.data, &expected[at], piece.count * sizeof(float)), 0);
    at += piece.count;
  }
  EXPECT_EQ(at, 677u);
  uint32_t count = 1;
  luwu_view_piece one;
  EXPECT_EQ(luwu_fetch_view(session.handle(), 3, 0, &one, &count, kShortMs),
            LUWU_E_INVALID_ARGUMENT);
  EXPECT_EQ(count, pieces.size());
  // After this worker has closed the layer in step 1, version 0 may be replaced.
  EmptyStep(session, 0);
  EXPECT_FALSE(session.view(3, 0).empty());
  session.begin_step(1, {cxx::adamw(1e-2)});
  session.close_layer(3);
  count = 100;
  std::vector<luwu_view_piece> room(100);
  ExpectError(luwu_fetch_view(session.handle(), 3, 0, room.data(), &count, kShortMs),
              LUWU_E_STALE_VERSION, {"closed"});
}

TEST_P(Calls, InPlaceMisuse) {
  cxx::Session session = OpenLoaded();
  const luwu_session s = session.handle();
  luwu_slot_piece pieces[8];
  uint32_t count = 8;
  luwu_op op = 0;
  const auto begin = [&](uint64_t offset, uint32_t flags) {
    count = 8;
    return luwu_push_inplace_begin(s, 3, offset, pieces, &count, flags, kShortMs, &op);
  };
  ExpectError(begin(0, 0), LUWU_E_STATE, {"luwu_begin_step"});
  session.begin_step(0, {cxx::adamw(1e-2)});
  ExpectError(begin(1, 0), LUWU_E_INVALID_ARGUMENT, {"shard_elements"});
  ExpectError(begin(704, 0), LUWU_E_INVALID_ARGUMENT, {"704"});
  ASSERT_EQ(begin(0, 0), LUWU_OK) << luwu_last_error();
  const luwu_op first = op;
  for (uint32_t i = 0; i < count; ++i) std::memset(pieces[i].data, 0, 4 * pieces[i].count);
  const uint64_t next = 64 * count;
  ExpectError(luwu_wait(first, kShortMs), LUWU_E_STATE, {"luwu_push_inplace_end"});
  ExpectError(luwu_test(first), LUWU_E_STATE, {"luwu_push_inplace_end"});
  ExpectError(begin(0, 0), LUWU_E_STATE, {"already part"});
  ExpectError(begin(next, LUWU_PUSH_CLOSE), LUWU_E_STATE, {"same flags"});
  std::vector<float> values(677);
  const luwu_segment whole = cxx::segment(values.data(), 677);
  ExpectError(luwu_push(s, 3, &whole, 1, 0, kShortMs), LUWU_E_STATE, {"push in place"});
  EXPECT_EQ(luwu_push_inplace_end(first), LUWU_OK);
  EXPECT_EQ(luwu_push_inplace_end(first), LUWU_E_STATE);
  EXPECT_EQ(luwu_wait(first, 10'000), LUWU_OK);
}

TEST_P(Calls, CloseCancelsWhatIsInFlight) {
  auto session = std::make_unique<cxx::Session>(OpenLoaded());
  const luwu_session s = session->handle();
  float value = 0;
  const luwu_segment segment = cxx::segment(&value, 1);
  luwu_op op = 0;
  cxx::check(luwu_fetch_async(s, 3, 5, &segment, 1, 60'000, &op));
  luwu_op behind = 0;
  cxx::check(luwu_fetch_async(s, 3, 0, &segment, 1, 60'000, &behind));
  int32_t result = 0;
  std::thread waiting([&] { result = luwu_fetch(s, 3, 5, &segment, 1, 60'000); });
  session->info();
  session.reset();
  waiting.join();
  // The handle may have ended just before the thread looked it up.
  EXPECT_TRUE(result == LUWU_E_CANCELLED || result == LUWU_E_BAD_HANDLE) << result;
  EXPECT_EQ(luwu_wait(op, 1000), LUWU_E_CANCELLED);
  EXPECT_EQ(luwu_wait(behind, 1000), LUWU_E_CANCELLED);
}

TEST_P(Calls, RankTakenTwiceAndTakenOver) {
  cxx::Session first = OpenLoaded();
  try {
    Open(job_);
    FAIL() << "the rank was given out twice";
  } catch (const cxx::Error& error) {
    EXPECT_EQ(error.code(), LUWU_E_RANK_TAKEN) << error.what();
  }
  cxx::Session second = Open(job_, 0, 1);
  EmptyStep(second, 0);
  float value = 0;
  const luwu_segment segment = cxx::segment(&value, 1);
  ExpectError(luwu_fetch(first.handle(), 3, 7, &segment, 1, 10'000), LUWU_E_FENCED, {"node"});
  const luwu_hyper group = cxx::adamw(1e-2);
  ExpectError(luwu_begin_step(first.handle(), 1, &group, 1, 5000), LUWU_E_FENCED, {});
}

TEST_P(Calls, JobOfAnotherSchemaIsRefusedNamingTheDifference) {
  cxx::Session first = OpenLoaded();
  cxx::JobSpec other = job_;
  other.layers[2].tensors[0].shape = {66};
  try {
    Open(other, 0, 1);
    FAIL() << "another schema was accepted";
  } catch (const cxx::Error& error) {
    EXPECT_EQ(error.code(), LUWU_E_SCHEMA_MISMATCH) << error.what();
    EXPECT_NE(std::string(error.what()).find("above"), std::string::npos) << error.what();
  }
}

TEST_P(Calls, JobWithFewerShardsThanNodesWorks) {
  cxx::JobSpec tiny;
  tiny.name = "tiny";
  tiny.served_dtype = tiny.gradient_dtype = LUWU_FLOAT32;
  tiny.layers = {{"one", {{"one.w", {3}}}}};
  cxx::Session session = Open(tiny);
  LoadAll(session, tiny);
  session.begin_step(0, {cxx::adamw(1e-2)});
  std::vector<float> values(3, 1);
  session.push(0, {cxx::segment(values.data(), 3)}, LUWU_PUSH_CLOSE);
  EXPECT_EQ(session.commit(0).outcome, LUWU_APPLIED);
  session.fetch(0, 1, {cxx::segment(values.data(), 3)});
  EXPECT_NE(values, Values(1000, 3));
}

TEST_P(Calls, ReadAndLoadRangesAreChecked) {
  cxx::Session session = Open(job_);
  std::vector<float> values(677);
  const luwu_session s = session.handle();
  ExpectError(luwu_load(s, 3, 1, values.data(), 677, kShortMs), LUWU_E_INVALID_ARGUMENT,
              {"'many'"});
  ExpectError(luwu_load(s, 3, ~uint64_t{0}, values.data(), 2, kShortMs), LUWU_E_INVALID_ARGUMENT,
              {"outside"});
  ExpectError(luwu_load(s, 3, 0, nullptr, 2, kShortMs), LUWU_E_INVALID_ARGUMENT, {"values"});
  // Whichever node answers first names its first tensor.
  ExpectError(luwu_finish_load(s, 0, 5000), LUWU_E_STATE, {"was not loaded"});
  LoadAll(session, job_);
  ExpectError(luwu_read(s, 3, 0, 0, values.data(), 1, kShortMs), LUWU_E_INVALID_ARGUMENT,
              {"quantity"});
  ExpectError(luwu_read(s, 3, LUWU_MASTER, 600, values.data(), 78, kShortMs),
              LUWU_E_INVALID_ARGUMENT, {"outside"});
  std::vector<float> middle(300);
  session.read({3, 50}, LUWU_MASTER, middle.data(), middle.size());
  const std::vector<float> expected = Values(1003, 677);
  for (size_t i = 0; i < middle.size(); ++i) ASSERT_EQ(middle[i], expected[50 + i]);
}

TEST_P(Calls, StatusIsJsonOfAllNodes) {
  cxx::Session session = OpenLoaded();
  std::string text(1 << 20, '\0');
  cxx::check(luwu_status_json(session.handle(), text.data(), text.size(), 5000));
  const nlohmann::json json = nlohmann::json::parse(text.c_str());
  ASSERT_EQ(json.at("nodes").size(), 2u);
  EXPECT_EQ(json["nodes"][0]["status"]["jobs"][0]["name"], "small");
  char cut[10];
  cxx::check(luwu_status_json(session.handle(), cut, sizeof cut, 5000));
  EXPECT_EQ(std::strlen(cut), 9u);
  ExpectError(luwu_status_json(session.handle(), nullptr, 10, 5000), LUWU_E_INVALID_ARGUMENT, {});
}

// What rank 0 has read from all daemons, as they see it.
uint64_t BytesServed(cxx::Session& session) {
  std::string text(1 << 20, '\0');
  cxx::check(luwu_status_json(session.handle(), text.data(), text.size(), 5000));
  const nlohmann::json status = nlohmann::json::parse(text.c_str());
  uint64_t bytes = 0;
  for (const nlohmann::json& node : status.at("nodes")) {
    const nlohmann::json& worker = node.at("status").at("jobs").at(0).at("workers").at(0);
    bytes += worker.at("fetched_bytes").get<uint64_t>();
  }
  return bytes;
}

TEST_P(Calls, APartOfAShardIsReadWithoutTheRest) {
  constexpr uint64_t kHeaderBytes = 64;
  constexpr uint64_t kShard = 64;
  const bool seen = GetParam() == LUWU_TRANSPORT_TCP;
  for (const bool always : {false, true}) {
    cxx::Session session({.endpoints = cluster_.endpoints(),
                          .job = job_,
                          .restart_count = always ? 1u : 0u,
                          .transport = GetParam(),
                          .verify_served_crc = always ? 1u : 0u});
    if (!always) LoadAll(session, job_);
    const auto served_for = [&](uint64_t offset, uint64_t count) {
      const uint64_t before = BytesServed(session);
      std::vector<float> out(count);
      session.fetch(3, 0, {cxx::segment(out.data(), count, offset)});
      return BytesServed(session) - before;
    };
    const uint64_t whole = seen ? kShard * 4 + kHeaderBytes : 0;
    const uint64_t part = seen ? 3 * 4 + kHeaderBytes : 0;
    EXPECT_EQ(served_for(0, 64), whole);
    EXPECT_EQ(served_for(70, 3), always ? whole : part);
    EXPECT_EQ(served_for(61, 6), always ? 2 * whole : 2 * part) << "of two shards";
  }
}

TEST_P(Calls, LogLinesGoToTheSinkOnly) {
  struct Lines {
    std::atomic<int> count{0};
    std::atomic<bool> opened{false};
  } lines;
  luwu_init(LUWU_ABI_VERSION);
  luwu_set_log_sink(
      [](int32_t, const char* line, void* context) {
        auto* seen = static_cast<Lines*>(context);
        ++seen->count;
        if (std::string(line).find("session_opened") == 0) seen->opened = true;
      },
      &lines, 1);
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  { cxx::Session session = OpenLoaded(); }
  luwu_set_log_sink(nullptr, nullptr, 0);
  const int count = lines.count;
  { cxx::Session session = Open(job_, 0, 1); }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_TRUE(lines.opened);
  EXPECT_EQ(lines.count, count);
}

INSTANTIATE_TEST_SUITE_P(Transports, Calls, ::testing::ValuesIn(TestedTransports()),
                         [](const auto& info) { return TransportName(info.param); });

}  // namespace
}  // namespace luwu::testing
