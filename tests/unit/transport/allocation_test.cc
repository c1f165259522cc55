// The data path allocates nothing once it is warm. This program counts every call of operator new.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "tests/unit/transport/harness.h"

namespace {
std::atomic<uint64_t> allocations{0};

void* Count(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

void* operator new(std::size_t bytes) { return Count(bytes); }
void* operator new[](std::size_t bytes) { return Count(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace luwu::transport {
namespace {

class Allocation : public ::testing::TestWithParam<LinkKind> {};

INSTANTIATE_TEST_SUITE_P(Links, Allocation,
                         ::testing::Values(LinkKind{"shm", Kind::kShm, 1, false, {}},
                                           LinkKind{"tcp1", Kind::kTcp, 1, false, {}},
                                           LinkKind{"tcp4", Kind::kTcp, 4, false, {}}),
                         [](const auto& info) { return info.param.name; });

class CountingRequest final : public Request {
 public:
  void Complete(const Status& status) override {
    if (!status.ok()) failures.fetch_add(1);
    completed.fetch_add(1);
  }
  static inline std::atomic<int> completed{0};
  static inline std::atomic<int> failures{0};
};

// Counts without a list, unlike TestEvents.
class CountingEvents final : public LinkEvents {
 public:
  void OnNotify(uint32_t) override { notified.fetch_add(1); }
  void OnDisconnect(const Status&) override {}
  std::atomic<int> notified{0};
};

class CountingAuthority final : public SessionAuthority {
 public:
  StatusOr<SessionTerms> Lookup(uint64_t) override { return terms; }
  LinkEvents* OnLink(uint64_t, std::unique_ptr<Endpoint> endpoint) override {
    server = std::move(endpoint);
    return &events;
  }
  SessionTerms terms;
  std::unique_ptr<Endpoint> server;
  CountingEvents events;
};

constexpr int kRequests = 64;

// Everything the data path can do, many requests at once; returns when all is done.
void Traffic(Endpoint& client, CountingEvents& heard, ConstByteSpan source, ByteSpan target) {
  static std::array<CountingRequest, kRequests> requests;
  CountingRequest::completed = 0;
  heard.notified = 0;
  for (uint32_t i = 0; i < kRequests; ++i) {
    const uint64_t bytes = i % 8 == 0 ? source.size() : 100 * i;
    const ConstByteSpan halves[] = {source.first(bytes / 2), source.subspan(bytes / 2, bytes / 2)};
    const RemoteSpan inbox(kInbox, 0, bytes / 2 * 2);
    switch (i % 4) {
      case 0:
        client.Write(halves, inbox, i, &requests[i]);
        break;
      case 1:
        client.WriteWithNotify(halves, inbox, i, i, &requests[i]);
        break;
      case 2:
        client.Read(RemoteSpan(kWeights, 0, bytes), target.first(bytes), i, &requests[i]);
        break;
      default:
        client.Notify(i, i, &requests[i]);
    }
  }
  const TimePoint deadline = Patience();
  while ((CountingRequest::completed.load() < kRequests || heard.notified.load() < kRequests / 2) &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
}

TEST_P(Allocation, NoneOnTheWarmDataPath) {
  Daemon daemon;
  CountingAuthority authority;
  authority.terms = daemon.Terms(GetParam().connections);
  const std::string path = FreshSocketPath();
  auto acceptor = *MakeAcceptor({"127.0.0.1:0", path, {}}, &authority);
  DialOptions options = daemon.Options(GetParam());
  options.address =
      GetParam().kind == Kind::kShm ? path : fmt::format("127.0.0.1:{}", acceptor->tcp_port());
  TestEvents events;
  auto client = *daemon.Dial(options, &events);
  const auto source = RandomBytes(2 * kMiB, 1);
  std::vector<std::byte> target(2 * kMiB);
  for (int i = 0; i < 5; ++i) Traffic(*client, authority.events, source, target);
  const uint64_t before = allocations.load();
  for (int i = 0; i < 50; ++i) Traffic(*client, authority.events, source, target);
  EXPECT_EQ(allocations.load() - before, 0U);
  EXPECT_EQ(CountingRequest::completed.load(), kRequests);
  EXPECT_EQ(authority.events.notified.load(), kRequests / 2);
  EXPECT_EQ(CountingRequest::failures.load(), 0);
  client.reset();
  authority.server.reset();
}

}  // namespace
}  // namespace luwu::transport
