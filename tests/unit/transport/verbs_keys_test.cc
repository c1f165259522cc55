// What a hostile trainer with a NIC and a valid session can and cannot reach
// (docs/THREAT_MODEL.md). Each refusal is made by the NIC, ends the session's link, and is counted;
// nothing is read or written. Runs over the fake fabric, and over real devices in the guest of
// scripts/rdma-vm.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/fakes/fake_verbs.h"
#include "tests/unit/transport/verbs_raw_client.h"

namespace luwu::transport {
namespace {

constexpr uint64_t kBytes = 256;
constexpr std::byte kOurs{0x5a};  // what the hostile client's own memory holds

LinkKind KindNamed(const std::string& part, bool present) {
  for (const LinkKind& kind : AllLinkKinds()) {
    const bool has = kind.name.find(part) != std::string::npos;
    if (kind.kind == Kind::kVerbs && has == present) return kind;
  }
  return {};
}

class VerbsKeys : public ::testing::TestWithParam<LinkKind> {
 protected:
  VerbsKeys() : daemon_(GetParam()) {
    std::fill(daemon_.weights->span().begin(), daemon_.weights->span().end(), std::byte{0x11});
    Admit(1, 77);
  }

  void Admit(uint64_t session_id, uint64_t job) {
    SessionTerms terms = daemon_.Terms(1);
    terms.domain = job;
    daemon_.authority.Admit(session_id, terms);
  }

  struct Attacker {
    std::unique_ptr<VerbsRawClient> client;
    TestAuthority::Linked link;
  };
  Attacker Link(uint64_t session_id) {
    Attacker attacker{std::make_unique<VerbsRawClient>(&daemon_, GetParam().verbs, session_id), {}};
    attacker.client->All();
    attacker.link = daemon_.authority.WaitLink(session_id);
    return attacker;
  }

  // One access that must be refused: nothing moves, the link ends, the daemon counts it.
  void ExpectRefused(Attacker& attacker, ibv_wr_opcode opcode, const VerbsKey& key,
                     uint64_t bytes = kBytes) {
    const uint64_t faults = daemon_.acceptor->verbs_counters().protection_faults;
    EXPECT_EQ(attacker.client->Access(opcode, key, bytes), IBV_WC_REM_ACCESS_ERR);
    EXPECT_FALSE(attacker.link.events->WaitDisconnect().ok());
    EXPECT_EQ(daemon_.acceptor->verbs_counters().protection_faults, faults + 1);
    const ByteSpan mine = attacker.client->memory();
    EXPECT_EQ(std::count(mine.begin(), mine.end(), kOurs), std::ssize(mine));
    ExpectUntouched();
  }
  void ExpectUntouched() {
    const ByteSpan weights = daemon_.weights->span();
    EXPECT_EQ(std::count(weights.begin(), weights.end(), std::byte{0x11}), std::ssize(weights));
    const ByteSpan inbox = daemon_.inbox->span();
    EXPECT_EQ(std::count(inbox.begin(), inbox.end(), std::byte{0}), std::ssize(inbox));
  }

  Daemon daemon_;
};

INSTANTIATE_TEST_SUITE_P(Keys, VerbsKeys,
                         ::testing::Values(KindNamed("registered", false),
                                           KindNamed("registered", true)),
                         [](const auto& info) { return info.param.name; });

TEST_P(VerbsKeys, WhatIsAllowedWorks) {
  Attacker trainer = Link(1);
  EXPECT_EQ(trainer.client->Access(IBV_WR_RDMA_READ, trainer.client->KeyOf(kWeights), kBytes),
            IBV_WC_SUCCESS);
  EXPECT_EQ(trainer.client->memory()[kBytes - 1], std::byte{0x11});
  EXPECT_EQ(trainer.client->memory()[kBytes], kOurs);
  EXPECT_EQ(trainer.client->Access(IBV_WR_RDMA_WRITE, trainer.client->KeyOf(kInbox), kBytes),
            IBV_WC_SUCCESS);
  EXPECT_EQ(daemon_.inbox->span()[0], std::byte{0x11});
  EXPECT_EQ(daemon_.acceptor->verbs_counters().protection_faults, 0U);
}

TEST_P(VerbsKeys, TheInboxIsNotRead) {
  Attacker attacker = Link(1);
  ExpectRefused(attacker, IBV_WR_RDMA_READ, attacker.client->KeyOf(kInbox));
}

TEST_P(VerbsKeys, WeightsAreNotWritten) {
  Attacker attacker = Link(1);
  ExpectRefused(attacker, IBV_WR_RDMA_WRITE, attacker.client->KeyOf(kWeights));
}

TEST_P(VerbsKeys, NothingBeyondTheBoundsIsReached) {
  for (const RegionId region : {kWeights, kInbox}) {
    const ibv_wr_opcode opcode = region == kWeights ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    for (const int64_t shift : {int64_t{-1}, int64_t{1}}) {
      Attacker attacker = Link(1);
      VerbsKey key = attacker.client->KeyOf(region);
      // One byte before the first, or one byte after the last.
      key.address += shift < 0 ? uint64_t(-1) : key.bytes - kBytes + 1;
      ExpectRefused(attacker, opcode, key);
    }
  }
}

TEST_P(VerbsKeys, KeysOfAnotherJobOpenNothing) {
  Admit(2, 78);
  for (const RegionId region : {kWeights, kInbox}) {
    const ibv_wr_opcode opcode = region == kWeights ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    Attacker victim = Link(1);
    Attacker attacker = Link(2);
    ExpectRefused(attacker, opcode, victim.client->KeyOf(region));
    EXPECT_EQ(victim.link.events->disconnects(), 0) << "nobody else is touched";
  }
}

// A window belongs to one queue pair. Without windows all sessions of a job share what they can do;
// docs/THREAT_MODEL.md says so.
TEST_P(VerbsKeys, KeysOfAnotherWorkerOfTheJobOpenNothingWhereThereAreWindows) {
  if (!GetParam().verbs.windows) {
    EXPECT_NE(GetParam().name.find("registered"), std::string::npos);
    return;
  }
  Admit(2, 77);
  Attacker victim = Link(1);
  Attacker attacker = Link(2);
  ExpectRefused(attacker, IBV_WR_RDMA_WRITE, victim.client->KeyOf(kInbox));
  EXPECT_EQ(victim.link.events->disconnects(), 0);
}

TEST_P(VerbsKeys, KeysDieWithTheirLink) {
  Admit(2, 77);
  Attacker former = Link(1);
  const VerbsKey weights = former.client->KeyOf(kWeights);
  former.link.endpoint->Close();
  // Its own queue pair is gone at the other end, and another of the same job finds the key dead.
  EXPECT_NE(former.client->Access(IBV_WR_RDMA_READ, weights, kBytes), IBV_WC_SUCCESS);
  Attacker attacker = Link(2);
  ExpectRefused(attacker, IBV_WR_RDMA_READ, weights);
}

TEST_P(VerbsKeys, NeighboursOfAKeyOpenNothing) {
  for (const uint32_t guess : {1U, 0x100U, 0xffffff00U, 0x80000000U}) {
    Attacker attacker = Link(1);
    VerbsKey key = attacker.client->KeyOf(kWeights);
    key.rkey += guess;
    if (key.rkey == attacker.client->KeyOf(kInbox).rkey) continue;
    ExpectRefused(attacker, IBV_WR_RDMA_READ, key);
  }
}

// A million keys against a live link, as its own queue pair and as another one would use them.
TEST(VerbsKeyGuessing, AMillionGuessesGiveNoAccess) {
  FakeVerbs fabric;
  LinkKind kind = {"fake", Kind::kVerbs, 1, false, {}, {.use = VerbsUse::kOn, .api = &fabric}};
  LinkPair pair(kind);
  ibv_qp* victim = nullptr;
  std::vector<FakeVerbs::Key> keys;
  for (ibv_qp* qp : fabric.QueuePairs()) {
    for (const FakeVerbs::Key& key : fabric.KeysOf(qp)) {
      if (key.bytes != pair.daemon.weights->bytes()) continue;
      victim = qp;
      keys.push_back(key);
    }
  }
  ASSERT_EQ(keys.size(), 2U);  // weights and inbox, as large
  ASSERT_TRUE(fabric.WouldAllow(victim, keys[0]));
  std::mt19937 random(1);
  uint64_t allowed = 0;
  for (uint32_t i = 0; i < 1'000'000; ++i) {
    FakeVerbs::Key guess = keys[i % 2];
    guess.rkey = i % 4 < 2 ? static_cast<uint32_t>(random()) : guess.rkey + 1 + i;
    guess.bytes = 8;
    if (guess.rkey == keys[0].rkey || guess.rkey == keys[1].rkey) continue;  // no guess
    for (ibv_qp* qp : fabric.QueuePairs()) allowed += fabric.WouldAllow(qp, guess) ? 1 : 0;
  }
  EXPECT_EQ(allowed, 0U);
}

}  // namespace
}  // namespace luwu::transport
