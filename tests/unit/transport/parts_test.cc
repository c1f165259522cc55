// The parts below the transports: word-wise copies, regions, addresses, request lists and gates.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "common/transport/request_list.h"
#include "common/transport/socket.h"
#include "common/transport/store_bytes.h"
#include "tests/unit/transport/harness.h"

namespace luwu::transport {
namespace {

TEST(StoreBytes, CopiesExactlyForEverySizeAndAlignment) {
  const auto source = RandomBytes(10'000, 1);
  for (const uint64_t bytes :
       {0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 4095, 4096, 4097, 9000}) {
    for (uint64_t shift = 0; shift < 9; ++shift) {
      alignas(8) std::array<std::byte, 9100> target;
      target.fill(std::byte{0xee});
      StoreBytes(target.data() + 16 + shift, Bytes(source).subspan(shift % 3, bytes));
      EXPECT_EQ(std::memcmp(target.data() + 16 + shift, source.data() + shift % 3, bytes), 0);
      EXPECT_EQ(target[15 + shift], std::byte{0xee});
      EXPECT_EQ(target[16 + shift + bytes], std::byte{0xee});
      std::array<std::byte, 9100> back;
      back.fill(std::byte{0xdd});
      LoadBytes(back.data() + 1, ConstByteSpan(target).subspan(16 + shift, bytes));
      EXPECT_EQ(std::memcmp(back.data() + 1, source.data() + shift % 3, bytes), 0);
      EXPECT_EQ(back[0], std::byte{0xdd});
      EXPECT_EQ(back[1 + bytes], std::byte{0xdd});
    }
  }
}

// A reader that sees a later word must see the earlier ones of the same small store.
TEST(StoreBytes, WordsAreStoredInAscendingOrder) {
  alignas(64) std::array<uint64_t, 64> shared = {};
  std::atomic<bool> stop{false};
  std::atomic<int> disordered{0};
  std::thread reader([&] {
    while (!stop.load()) {
      const uint64_t late = std::atomic_ref(shared[63]).load(std::memory_order_acquire);
      const uint64_t early = std::atomic_ref(shared[0]).load(std::memory_order_acquire);
      if (early < late) disordered.fetch_add(1);
    }
  });
  std::array<uint64_t, 64> values;
  for (uint64_t i = 1; i < 50'000; ++i) {
    values.fill(i);
    StoreBytes(reinterpret_cast<std::byte*>(shared.data()), std::as_bytes(std::span(values)));
  }
  stop.store(true);
  reader.join();
  EXPECT_EQ(disordered.load(), 0);
}

TEST(LocalRegion, RefusesNoBytesAndStartsZeroed) {
  EXPECT_EQ(CodeOf(LocalRegion::Create("empty", 0, Access::kRemoteRead).status()),
            ErrorCode::kInvalidArgument);
  const auto region = LocalRegion::Create("odd", 5000, Access::kRemoteWrite);
  ASSERT_TRUE(region.ok());
  EXPECT_EQ((*region)->bytes(), 5000U);
  EXPECT_EQ((*region)->access(), Access::kRemoteWrite);
  for (const std::byte byte : (*region)->span()) ASSERT_EQ(byte, std::byte{0});
  (*region)->span()[4999] = std::byte{1};
}

TEST(RemoteSpan, SubRangesAreChecked) {
  const RemoteSpan span(3, 100, 50);
  const auto part = span.Sub(10, 40);
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(part->offset(), 110U);
  EXPECT_EQ(part->bytes(), 40U);
  EXPECT_EQ(part->region(), 3U);
  EXPECT_TRUE(span.Sub(50, 0).ok());
  EXPECT_FALSE(span.Sub(51, 0).ok());
  EXPECT_FALSE(span.Sub(10, 41).ok());
  EXPECT_FALSE(span.Sub(UINT64_MAX, 2).ok());
  EXPECT_FALSE(span.Sub(2, UINT64_MAX).ok());
}

TEST(Addresses, BadOnesAreNamed) {
  for (const char* address : {"", "localhost", "localhost:", ":x", "127.0.0.1:65536",
                              "127.0.0.1:-1", "127.0.0.1:123456"}) {
    const auto listener = ListenTcp(address);
    ASSERT_FALSE(listener.ok()) << address;
    EXPECT_NE(MessageOf(listener.status()).find(fmt::format("'{}'", address)), std::string::npos);
  }
  EXPECT_EQ(CodeOf(ListenUnix("").status()), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(ListenUnix(std::string(200, 'x')).status()), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(ListenUnix("/nonexistent-folder/socket").ok());
}

TEST(Addresses, BothFamiliesAndPortZero) {
  const auto four = ListenTcp("127.0.0.1:0");
  ASSERT_TRUE(four.ok());
  EXPECT_NE(four->port, 0);
  EXPECT_TRUE(ConnectTcp(fmt::format("127.0.0.1:{}", four->port), Patience()).ok());
  EXPECT_TRUE(ConnectTcp(fmt::format("localhost:{}", four->port), Patience()).ok());
  EXPECT_TRUE(ListenTcp(":0").ok());
  const auto six = ListenTcp("[::1]:0");
  if (six.ok()) {
    EXPECT_TRUE(ConnectTcp(fmt::format("[::1]:{}", six->port), Patience()).ok());
  }
}

TEST(Printable, NothingOfAPeersTextCanForgeALogLine) {
  EXPECT_EQ(Printable("a\nb\x1b[0m\xff~ "), "a?b?[0m?~ ");
}

TEST(PostGate, ShutWaitsForThoseInside) {
  PostGate gate;
  ASSERT_TRUE(gate.Enter());
  ASSERT_TRUE(gate.Enter());
  std::atomic<bool> shut{false};
  std::thread closing([&] {
    gate.ShutAndWait();
    shut.store(true);
  });
  while (gate.Enter()) gate.Leave();  // until it is shut
  EXPECT_FALSE(shut.load());
  gate.Leave();
  EXPECT_FALSE(shut.load());
  gate.Leave();
  closing.join();
  EXPECT_FALSE(gate.Enter());
}

TEST(PostGate, ManyThreadsComeAndGo) {
  for (int round = 0; round < 50; ++round) {
    PostGate gate;
    std::atomic<int> inside{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        while (gate.Enter()) {
          inside.fetch_add(1);
          inside.fetch_sub(1);
          gate.Leave();
          std::this_thread::yield();
        }
      });
    }
    gate.WaitEmpty();
    gate.ShutAndWait();
    EXPECT_EQ(inside.load(), 0);
    for (std::thread& thread : threads) thread.join();
  }
}

class Recorder final : public Request {
 public:
  Recorder(std::vector<int>* order, int number) : order_(order), number_(number) {}
  void Complete(const Status&) override {
    order_->push_back(number_);
    if (then_) then_();
  }
  void set_then(std::function<void()> then) { then_ = std::move(then); }

 private:
  std::vector<int>* order_;
  int number_;
  std::function<void()> then_;
};

TEST(RequestList, CompletesInOrderIncludingWhatIsPushedMeanwhile) {
  std::vector<int> order;
  RequestList list;
  Recorder first(&order, 1);
  Recorder second(&order, 2);
  Recorder third(&order, 3);
  first.set_then([&] { list.Push(&third, OkStatus()); });
  list.Push(&first, OkStatus());
  list.Push(&second, OkStatus());
  list.CompleteAll();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
  EXPECT_TRUE(list.empty());
}

TEST(RequestList, NestedCompletionsAreLeftToTheOutermostCall) {
  std::vector<int> order;
  Recorder inner(&order, 2);
  Recorder outer(&order, 1);
  outer.set_then([&] {
    CompleteInPost(&inner, OkStatus(), nullptr);
    order.push_back(10);  // the nested call has returned before its request completes
  });
  CompleteInPost(&outer, OkStatus(), nullptr);
  EXPECT_EQ(order, (std::vector<int>{1, 10, 2}));
}

}  // namespace
}  // namespace luwu::transport
