// One suite for every transport: what transport.h promises of reads, writes and notifications.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include "tests/unit/transport/harness.h"

namespace luwu::transport {
namespace {

class Conformance : public ::testing::TestWithParam<LinkKind> {
 protected:
  bool shm() const { return GetParam().kind == Kind::kShm; }
};

INSTANTIATE_TEST_SUITE_P(Links, Conformance, ::testing::ValuesIn(AllLinkKinds()),
                         [](const auto& info) { return info.param.name; });

constexpr uint64_t kSizes[] = {0,    1,       3,        4,    7,        8,
                               63,   64,      65,       4095, 4096,     4097,
                               8192, 100'000, kMiB - 1, kMiB, kMiB + 1, 3 * kMiB + 5};

bool SameBytes(ConstByteSpan a, ConstByteSpan b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

TEST_P(Conformance, WriteFillsExactlyItsTarget) {
  LinkPair pair(GetParam());
  const ByteSpan inbox = pair.daemon.inbox->span();
  uint64_t seed = 1;
  for (const uint64_t bytes : kSizes) {
    for (const uint64_t offset : {uint64_t{0}, uint64_t{8}, uint64_t{13}, inbox.size() - bytes}) {
      if (!RangeFits(offset, bytes, inbox.size())) continue;
      std::fill(inbox.begin(), inbox.end(), std::byte{0xee});
      const auto data = RandomBytes(bytes, ++seed);
      ASSERT_TRUE(WriteNow(*pair.client, data, RemoteSpan(kInbox, offset, bytes)).ok());
      ASSERT_TRUE(SameBytes(inbox.subspan(offset, bytes), data)) << offset << "+" << bytes;
      // Not one byte before or after it.
      EXPECT_EQ(std::count(inbox.begin(), inbox.begin() + offset, std::byte{0xee}),
                static_cast<ptrdiff_t>(offset));
      EXPECT_EQ(std::count(inbox.begin() + offset + bytes, inbox.end(), std::byte{0xee}),
                static_cast<ptrdiff_t>(inbox.size() - offset - bytes));
    }
  }
}

TEST_P(Conformance, ReadFetchesExactlyItsSource) {
  LinkPair pair(GetParam());
  const ByteSpan weights = pair.daemon.weights->span();
  const auto content = RandomBytes(weights.size(), 7);
  std::copy(content.begin(), content.end(), weights.begin());
  for (const uint64_t bytes : kSizes) {
    for (const uint64_t offset : {uint64_t{0}, uint64_t{13}, weights.size() - bytes}) {
      if (!RangeFits(offset, bytes, weights.size())) continue;
      std::vector<std::byte> got(bytes + 2, std::byte{0xee});
      const ByteSpan target = ByteSpan(got).subspan(1, bytes);
      ASSERT_TRUE(ReadNow(*pair.client, RemoteSpan(kWeights, offset, bytes), target).ok());
      ASSERT_TRUE(SameBytes(target, weights.subspan(offset, bytes))) << offset << "+" << bytes;
      EXPECT_EQ(got.front(), std::byte{0xee});
      EXPECT_EQ(got.back(), std::byte{0xee});
    }
  }
}

TEST_P(Conformance, TheDaemonReachesTheClientsRegionsLikewise) {
  LinkPair pair(GetParam());
  Endpoint& daemon = *pair.server.endpoint;
  const auto data = RandomBytes(60'000, 3);
  ASSERT_TRUE(WriteNow(daemon, data, RemoteSpan(kBoard, 100, data.size())).ok());
  EXPECT_TRUE(SameBytes(pair.daemon.board->span().subspan(100, data.size()), data));
  std::copy(data.begin(), data.end(), pair.daemon.outbox->span().begin());
  std::vector<std::byte> got(data.size());
  ASSERT_TRUE(ReadNow(daemon, RemoteSpan(kOutbox, 0, got.size()), got).ok());
  EXPECT_EQ(got, data);
}

TEST_P(Conformance, GatherWritesItsRangesBackToBack) {
  LinkPair pair(GetParam());
  std::mt19937_64 random(11);
  for (const size_t count : {size_t{1}, size_t{2}, size_t{5}, kGatherMax}) {
    for (const uint64_t longest : {uint64_t{2}, uint64_t{300}, uint64_t{50'000}}) {
      std::vector<std::vector<std::byte>> pieces;
      std::vector<ConstByteSpan> ranges;
      std::vector<std::byte> whole;
      for (size_t i = 0; i < count; ++i)
        pieces.push_back(RandomBytes(random() % longest, random()));
      for (const auto& piece : pieces) {
        ranges.emplace_back(piece);
        whole.insert(whole.end(), piece.begin(), piece.end());
      }
      TestRequest request;
      pair.client->Write(ranges, RemoteSpan(kInbox, 8, whole.size()), 1, &request);
      // The list of ranges need not outlive the call.
      std::fill(ranges.begin(), ranges.end(), ConstByteSpan());
      ASSERT_TRUE(request.Result().ok());
      ASSERT_TRUE(SameBytes(pair.daemon.inbox->span().subspan(8, whole.size()), whole));
    }
  }
}

TEST_P(Conformance, WrongArgumentsAreRefusedAndTheLinkStays) {
  LinkPair pair(GetParam());
  const auto data = RandomBytes(64, 1);
  const std::vector<ConstByteSpan> too_many(kGatherMax + 1, Bytes(data).first(1));
  TestRequest many;
  pair.client->Write(too_many, RemoteSpan(kInbox, 0, too_many.size()), 0, &many);
  EXPECT_EQ(CodeOf(many.Result()), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(WriteNow(*pair.client, data, RemoteSpan(kInbox, 0, 63))),
            ErrorCode::kInvalidArgument);
  std::vector<std::byte> target(10);
  EXPECT_EQ(CodeOf(ReadNow(*pair.client, RemoteSpan(kWeights, 0, 11), target)),
            ErrorCode::kInvalidArgument);
  EXPECT_TRUE(WriteNow(*pair.client, data, RemoteSpan(kInbox, 0, 64)).ok());
  EXPECT_TRUE(pair.client->connected());
  EXPECT_EQ(pair.client_events.disconnects(), 0);
}

TEST_P(Conformance, ReachingOutsideWhatIsExposedEndsTheLink) {
  struct Case {
    RemoteSpan span;
    bool read;
  };
  const uint64_t size = 64 * kKiB;
  const Case cases[] = {
      {RemoteSpan(kInbox, size, 1), false},
      {RemoteSpan(kInbox, size - 7, 8), false},
      {RemoteSpan(kInbox, UINT64_MAX, 8), false},
      {RemoteSpan(kInbox, UINT64_MAX - 7, 8), false},
      {RemoteSpan(kInbox, size + 1, 0), false},
      {RemoteSpan(kWeights, 0, 8), false},
      {RemoteSpan(99, 0, 8), false},
      {RemoteSpan(kInbox, 0, 8), true},
      {RemoteSpan(kWeights, size - 7, 8), true},
      {RemoteSpan(kWeights, UINT64_MAX, 8), true},
      {RemoteSpan(98, 0, 8), true},
  };
  for (const Case& test : cases) {
    LinkPair pair(GetParam(), size);
    std::vector<std::byte> data(test.span.bytes());
    const Status status = test.read ? ReadNow(*pair.client, test.span, data)
                                    : WriteNow(*pair.client, data, test.span);
    EXPECT_FALSE(status.ok()) << test.span.region() << " " << test.span.offset();
    EXPECT_FALSE(pair.client_events.WaitDisconnect().ok());
    EXPECT_FALSE(pair.server.events->WaitDisconnect().ok());
    EXPECT_FALSE(pair.client->connected());
    const std::vector<std::byte> more(8);
    EXPECT_EQ(CodeOf(WriteNow(*pair.client, more, RemoteSpan(kInbox, 0, 8))),
              ErrorCode::kUnavailable);
    const ByteSpan inbox = pair.daemon.inbox->span();
    EXPECT_EQ(std::count(inbox.begin(), inbox.end(), std::byte{0}),
              static_cast<ptrdiff_t>(inbox.size()));
  }
}

// Watches one word while the peer writes it; any mixture of two values would show.
template <typename T>
void ExpectWordsAreWhole(Endpoint& endpoint, const LocalRegion& board, bool gathered) {
  const uint64_t offset = 64;
  auto* word = reinterpret_cast<T*>(board.span().data() + offset);
  std::atomic_ref<T>(*word).store(0);
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0};
  std::thread watcher([&] {
    while (!stop.load()) {
      const T value = std::atomic_ref<T>(*word).load();
      if (value != 0 && value != static_cast<T>(~T{0})) torn.fetch_add(1);
    }
  });
  for (int i = 0; i < 300; ++i) {
    const T value = i % 2 == 0 ? static_cast<T>(~T{0}) : T{0};
    const ConstByteSpan bytes = std::as_bytes(std::span<const T, 1>(&value, 1));
    const ConstByteSpan halves[] = {bytes.first(sizeof(T) / 2), bytes.subspan(sizeof(T) / 2)};
    TestRequest request;
    const std::span<const ConstByteSpan> source =
        gathered ? std::span<const ConstByteSpan>(halves) : std::span(&bytes, 1);
    endpoint.Write(source, RemoteSpan(kBoard, offset, sizeof(T)), 0, &request);
    EXPECT_TRUE(request.Result().ok());
    EXPECT_EQ(std::atomic_ref<T>(*word).load(), value);
  }
  stop.store(true);
  watcher.join();
  EXPECT_EQ(torn.load(), 0);
}

TEST_P(Conformance, AlignedWordsAreNeverSeenHalfWritten) {
  LinkPair pair(GetParam());
  for (const bool gathered : {false, true}) {
    ExpectWordsAreWhole<uint64_t>(*pair.server.endpoint, *pair.daemon.board, gathered);
    ExpectWordsAreWhole<uint32_t>(*pair.server.endpoint, *pair.daemon.board, gathered);
  }
}

TEST_P(Conformance, ANotificationFindsItsBytesInPlace) {
  LinkPair pair(GetParam());
  constexpr uint32_t kSlots = 200;
  constexpr uint64_t kSlotBytes = 20'000;
  std::atomic<int> wrong{0};
  const ByteSpan inbox = pair.daemon.inbox->span();
  pair.server.events->set_on_notify([&](uint32_t slot) {
    const ByteSpan bytes = inbox.subspan(slot * kSlotBytes, kSlotBytes);
    if (!SameBytes(bytes, RandomBytes(kSlotBytes, slot))) wrong.fetch_add(1);
  });
  std::deque<std::vector<std::byte>> sources;
  std::deque<TestRequest> requests(kSlots);
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    sources.push_back(RandomBytes(kSlotBytes, slot));
    const ConstByteSpan ranges[] = {Bytes(sources.back()).first(777),
                                    Bytes(sources.back()).subspan(777)};
    pair.client->WriteWithNotify(ranges, RemoteSpan(kInbox, slot * kSlotBytes, kSlotBytes),
                                 slot % 5, slot, &requests[slot]);
  }
  EXPECT_EQ(pair.server.events->WaitNotifies(kSlots).size(), kSlots);
  for (TestRequest& request : requests) EXPECT_TRUE(request.Result().ok());
  EXPECT_EQ(wrong.load(), 0);
}

TEST_P(Conformance, NotificationsOfALaneKeepTheirOrder) {
  LinkPair pair(GetParam());
  constexpr uint32_t kLanes = 6;
  constexpr uint32_t kPerLane = 700;
  std::deque<TestRequest> requests(kLanes * kPerLane);
  std::vector<std::thread> posters;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    posters.emplace_back([&, lane] {
      for (uint32_t i = 0; i < kPerLane; ++i) {
        pair.client->Notify(lane, lane << 16 | i, &requests[lane * kPerLane + i]);
      }
    });
  }
  for (std::thread& poster : posters) poster.join();
  const auto immediates = pair.server.events->WaitNotifies(kLanes * kPerLane);
  ASSERT_EQ(immediates.size(), kLanes * kPerLane);
  std::vector<uint32_t> next(kLanes, 0);
  for (const uint32_t immediate : immediates) {
    EXPECT_EQ(immediate & 0xffff, next[immediate >> 16]++);
  }
  for (TestRequest& request : requests) EXPECT_TRUE(request.Result().ok());
}

TEST_P(Conformance, WritesOfALaneTakeEffectInOrder) {
  LinkPair pair(GetParam());
  constexpr uint64_t kCount = 400;
  auto* word = reinterpret_cast<uint64_t*>(pair.daemon.board->span().data());
  std::atomic<bool> stop{false};
  std::atomic<int> regressions{0};
  std::thread watcher([&] {
    uint64_t last = 0;
    while (!stop.load()) {
      const uint64_t value = std::atomic_ref<uint64_t>(*word).load();
      if (value < last) regressions.fetch_add(1);
      last = value;
    }
  });
  std::vector<uint64_t> values(kCount);
  std::deque<TestRequest> requests(kCount);
  for (uint64_t i = 0; i < kCount; ++i) {
    values[i] = i + 1;
    const ConstByteSpan source = std::as_bytes(std::span(&values[i], 1));
    pair.server.endpoint->Write({&source, 1}, RemoteSpan(kBoard, 0, 8), 3, &requests[i]);
  }
  for (TestRequest& request : requests) EXPECT_TRUE(request.Result().ok());
  stop.store(true);
  watcher.join();
  EXPECT_EQ(std::atomic_ref<uint64_t>(*word).load(), kCount);
  EXPECT_EQ(regressions.load(), 0);
}

TEST_P(Conformance, MappingIsOfferedWhereTheTransportCan) {
  LinkPair pair(GetParam());
  auto inbox = pair.client->MapWritable(kInbox);
  auto weights = pair.client->MapReadable(kWeights);
  ASSERT_EQ(inbox.has_value(), shm());
  ASSERT_EQ(weights.has_value(), shm());
  EXPECT_FALSE(pair.client->MapWritable(kWeights).has_value());
  EXPECT_FALSE(pair.client->MapReadable(77).has_value());
  EXPECT_EQ(pair.client->kind(), GetParam().kind);
  TestRequest request;
  if (shm()) {
    EXPECT_EQ(inbox->size(), pair.daemon.inbox->bytes());
    (*inbox)[5] = std::byte{42};
    pair.daemon.weights->span()[6] = std::byte{43};
    EXPECT_EQ((*weights)[6], std::byte{43});
  }
  std::atomic<int> seen{0};
  pair.server.events->set_on_notify(
      [&](uint32_t) { seen = std::to_integer<int>(pair.daemon.inbox->span()[5]); });
  pair.client->Notify(0, 9, &request);
  EXPECT_EQ(pair.server.events->WaitNotifies(1), std::vector<uint32_t>{9});
  EXPECT_TRUE(request.Result().ok());
  EXPECT_EQ(seen.load(), shm() ? 42 : 0);
}

// Posts its successor from within its own completion.
class Chain final : public Request {
 public:
  Chain(Endpoint* endpoint, int length) : endpoint_(endpoint), left_(length) {}
  void Post() { endpoint_->Read(RemoteSpan(kWeights, 0, 16), bytes_, 0, this); }
  void Complete(const Status& status) override {
    if (status.ok() && --left_ > 0) return Post();
    done_.Complete(status);
  }
  Status Result() { return done_.Result(); }

 private:
  Endpoint* endpoint_;
  int left_;
  std::array<std::byte, 16> bytes_ = {};
  TestRequest done_;
};

TEST_P(Conformance, ACompletionMayPostTheNextRequestForEver) {
  LinkPair pair(GetParam());
  Chain chain(pair.client.get(), 20'000);  // recursion would exhaust the stack
  chain.Post();
  EXPECT_TRUE(chain.Result().ok());
}

TEST_P(Conformance, AnEventMayPost) {
  LinkPair pair(GetParam());
  constexpr uint32_t kRounds = 500;
  std::deque<TestRequest> answers(kRounds);
  pair.server.events->set_on_notify(
      [&](uint32_t i) { pair.server.endpoint->Notify(0, i + 1, &answers[i]); });
  for (uint32_t i = 0; i < kRounds; ++i) {
    TestRequest request;
    pair.client->Notify(0, i, &request);
    ASSERT_TRUE(request.Result().ok());
    const auto heard = pair.client_events.WaitNotifies(i + 1);
    ASSERT_EQ(heard.size(), i + 1);
    ASSERT_EQ(heard.back(), i + 1);
  }
  for (TestRequest& answer : answers) EXPECT_TRUE(answer.Result().ok());
}

// A hundred thousand reads and writes of random size and place against an array of bytes.
TEST_P(Conformance, RandomOperationsAgreeWithAByteArray) {
  constexpr int kOperations = 100'000;
  constexpr size_t kWindow = 64;
  constexpr uint64_t kStripes = 8;  // one lane each, so that the order of overlapping writes counts
  LinkPair pair(GetParam(), kMiB);
  const ByteSpan inbox = pair.daemon.inbox->span();
  const ByteSpan weights = pair.daemon.weights->span();
  const auto content = RandomBytes(weights.size(), 5);
  std::copy(content.begin(), content.end(), weights.begin());
  std::vector<std::byte> model(inbox.size());
  const auto noise = RandomBytes(kMiB, 6);
  std::mt19937_64 random(GetParam().connections);

  struct Slot {
    std::unique_ptr<TestRequest> request;
    std::vector<std::byte> target;
    uint64_t offset = 0;
  };
  std::deque<Slot> window;
  const auto settle = [&](size_t left) {
    for (; window.size() > left; window.pop_front()) {
      const Slot& slot = window.front();
      ASSERT_TRUE(slot.request->Result().ok());
      ASSERT_TRUE(
          SameBytes(slot.target, ConstByteSpan(content).subspan(slot.offset, slot.target.size())));
    }
  };
  for (int i = 0; i < kOperations; ++i) {
    const uint64_t stripe = random() % kStripes;
    const uint64_t stripe_bytes = kMiB / kStripes;
    const uint64_t longest = random() % 100 == 0 ? stripe_bytes : 600;
    const uint64_t bytes = random() % (longest + 1);
    const uint64_t offset = stripe * stripe_bytes + random() % (stripe_bytes - bytes + 1);
    Slot& slot = window.emplace_back();
    slot.request = std::make_unique<TestRequest>();
    if (random() % 2 == 0) {
      slot.target.resize(bytes);
      slot.offset = offset;
      pair.client->Read(RemoteSpan(kWeights, offset, bytes), slot.target,
                        static_cast<uint32_t>(random() % 16), slot.request.get());
    } else {
      const ConstByteSpan source = Bytes(noise).subspan(random() % (kMiB - bytes), bytes);
      std::copy(source.begin(), source.end(), model.begin() + static_cast<ptrdiff_t>(offset));
      const uint64_t cut = random() % (bytes + 1);
      const ConstByteSpan ranges[] = {source.first(cut), source.subspan(cut)};
      pair.client->Write(ranges, RemoteSpan(kInbox, offset, bytes), static_cast<uint32_t>(stripe),
                         slot.request.get());
    }
    settle(kWindow);
    if (i % 10'000 == 0) {
      settle(0);
      ASSERT_TRUE(SameBytes(inbox, model)) << "after " << i << " operations";
    }
    if (HasFatalFailure()) return;
  }
  settle(0);
  EXPECT_TRUE(SameBytes(inbox, model));
}

TEST_P(Conformance, BothDirectionsMoveAtOnce) {
  LinkPair pair(GetParam());
  constexpr int kRounds = 40;
  const auto weights = RandomBytes(pair.daemon.weights->bytes(), 1);
  std::copy(weights.begin(), weights.end(), pair.daemon.weights->span().begin());
  const auto pushed = RandomBytes(2 * kMiB, 2);
  const auto published = RandomBytes(30'000, 3);
  std::vector<std::byte> fetched(2 * kMiB);
  std::thread fetcher([&] {
    for (int i = 0; i < kRounds; ++i) {
      std::fill(fetched.begin(), fetched.end(), std::byte{0});
      EXPECT_TRUE(ReadNow(*pair.client, RemoteSpan(kWeights, 77, fetched.size()), fetched, 0).ok());
      EXPECT_TRUE(SameBytes(fetched, Bytes(weights).subspan(77, fetched.size())));
    }
  });
  std::thread publisher([&] {
    for (int i = 0; i < kRounds; ++i) {
      const RemoteSpan target(kBoard, 0, published.size());
      EXPECT_TRUE(WriteNow(*pair.server.endpoint, published, target, 1).ok());
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    const RemoteSpan target(kInbox, 99, pushed.size());
    EXPECT_TRUE(WriteNow(*pair.client, pushed, target, 1).ok());
    EXPECT_TRUE(SameBytes(pair.daemon.inbox->span().subspan(99, pushed.size()), pushed));
  }
  fetcher.join();
  publisher.join();
  EXPECT_TRUE(SameBytes(pair.daemon.board->span().first(published.size()), published));
}

TEST_P(Conformance, BytesThatThePeerReadAreCounted) {
  LinkPair pair(GetParam());
  std::vector<std::byte> target(3 * kMiB);
  ASSERT_TRUE(ReadNow(*pair.client, RemoteSpan(kWeights, 0, target.size()), target).ok());
  ASSERT_TRUE(ReadNow(*pair.client, RemoteSpan(kWeights, 7, 1), {target.data(), 1}, 1).ok());
  const bool seen = GetParam().kind == Kind::kTcp;
  EXPECT_EQ(pair.server.endpoint->served_bytes(), seen ? target.size() + 1 : 0);
}

// Writes the same big block again and again until it is told to stop.
class Stream final : public Request {
 public:
  Stream(Endpoint* endpoint, const std::vector<std::byte>* data, uint32_t lane)
      : endpoint_(endpoint), source_(*data), lane_(lane) {}
  void Post() {
    endpoint_->Write({&source_, 1}, RemoteSpan(kInbox, lane_ * kMiB, kMiB), lane_, this);
  }
  void Complete(const Status& status) override {
    rounds_.fetch_add(1);
    if (status.ok() && !stop_.load()) return Post();
    done_.Complete(status);
  }
  Status Stop() {
    stop_.store(true);
    return done_.Result();
  }
  int rounds() const { return rounds_.load(); }

 private:
  Endpoint* endpoint_;
  ConstByteSpan source_;
  uint32_t lane_;
  std::atomic<bool> stop_{false};
  std::atomic<int> rounds_{0};
  TestRequest done_;
};

TEST_P(Conformance, BigTransfersLeaveRoomForOthers) {
  LinkPair pair(GetParam());
  Daemon& daemon = pair.daemon;
  daemon.authority.Admit(2, daemon.Terms(GetParam().connections));
  TestEvents events;
  auto other = daemon.Dial(daemon.Options(GetParam(), 2), &events);
  ASSERT_TRUE(other.ok());
  auto other_server = daemon.authority.WaitLink(2);
  const std::vector<std::byte> block(kMiB);
  std::deque<Stream> streams;
  std::vector<std::thread> posters;  // on shm a stream never leaves its first posting call
  for (uint32_t lane = 0; lane < 4; ++lane) {
    Stream& stream = streams.emplace_back(pair.client.get(), &block, lane);
    posters.emplace_back([&stream] { stream.Post(); });
  }
  std::vector<std::byte> target(4096);
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(ReadNow(**other, RemoteSpan(kWeights, 0, 4096), target).ok()) << "another link";
    EXPECT_TRUE(ReadNow(*pair.client, RemoteSpan(kWeights, 0, 4096), target, 1).ok()) << "a lane";
    EXPECT_TRUE(WriteNow(*pair.server.endpoint, target, RemoteSpan(kBoard, 0, 4096), 1).ok());
  }
  for (Stream& stream : streams) {
    EXPECT_TRUE(stream.Stop().ok());
    EXPECT_GT(stream.rounds(), 0);
  }
  for (std::thread& poster : posters) poster.join();
  other->reset();
  other_server.endpoint.reset();
}

}  // namespace
}  // namespace luwu::transport
