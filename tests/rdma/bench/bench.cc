// luwu-rdma-bench [--bytes TOTAL] [--reads N] [--shards N] [--device NAME] [--mode busy]: moves
// TOTAL bytes in shards of 1 MiB over a verbs link of this process with itself, by WRITE and by
// READ, to and from pinned memory and through staging memory; and times N single READs of 64 bytes.
// Prints one JSON object. compare.py puts it beside perftest's figures.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "common/base/memory.h"
#include "common/base/sync.h"
#include "common/transport/connect.h"

namespace luwu::transport {
namespace {

constexpr RegionId kWeights = 1;
constexpr RegionId kInbox = 2;
constexpr uint64_t kShardBytes = 1 * kMiB;
constexpr uint32_t kInFlight = 8;

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "luwu-rdma-bench: %s\n", what.c_str());
  std::exit(1);
}

template <typename T>
T OrDie(StatusOr<T> value) {
  if (!value.ok()) Die(ToString(value.status()));
  return *std::move(value);
}

class NoEvents final : public LinkEvents {
 public:
  void OnNotify(uint32_t) override {}
  void OnDisconnect(const Status&) override {}
};

// One session, whose endpoint is kept.
class OneSession final : public SessionAuthority {
 public:
  explicit OneSession(SessionTerms terms) : terms_(std::move(terms)) {}
  StatusOr<SessionTerms> Lookup(uint64_t) override { return terms_; }
  LinkEvents* OnLink(uint64_t, std::unique_ptr<Endpoint> endpoint) override {
    endpoint_ = std::move(endpoint);
    return &events_;
  }
  void Close() { endpoint_ = nullptr; }

 private:
  SessionTerms terms_;
  NoEvents events_;
  std::unique_ptr<Endpoint> endpoint_;
};

// Counts completions down.
class Countdown {
 public:
  void Wait(uint32_t left) {
    MutexLock lock(mutex_);
    while (outstanding_ > left) changed_.Wait(mutex_);
  }
  void Begin() {
    MutexLock lock(mutex_);
    ++outstanding_;
  }
  void End(const Status& status) {
    if (!status.ok()) Die(ToString(status));
    MutexLock lock(mutex_);
    --outstanding_;
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  uint32_t outstanding_ LUWU_GUARDED_BY(mutex_) = 0;
};

class Transfer final : public Request {
 public:
  explicit Transfer(Countdown* countdown) : countdown_(countdown) {}
  void Complete(const Status& status) override { countdown_->End(status); }

 private:
  Countdown* const countdown_;
};

double SecondsSince(TimePoint start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// MB/s of `total` bytes in shards.
double Bandwidth(Endpoint& endpoint, bool read, ByteSpan memory, uint64_t total) {
  const uint64_t region_shards = memory.size() / kShardBytes;
  Countdown countdown;
  std::deque<Transfer> transfers(kInFlight, Transfer(&countdown));
  const auto run = [&](uint64_t shards) {
    for (uint64_t i = 0; i < shards; ++i) {
      countdown.Wait(kInFlight - 1);
      countdown.Begin();
      const uint64_t at = i % region_shards * kShardBytes;
      const ByteSpan bytes = memory.subspan(at, kShardBytes);
      const ConstByteSpan source = bytes;
      const auto lane = static_cast<uint32_t>(i % 2);
      Transfer* transfer = &transfers[i % kInFlight];
      if (read) {
        endpoint.Read(RemoteSpan(kWeights, at, kShardBytes), bytes, lane, transfer);
      } else {
        endpoint.Write({&source, 1}, RemoteSpan(kInbox, at, kShardBytes), lane, transfer);
      }
    }
    countdown.Wait(0);
  };
  run(kInFlight);  // warm
  const TimePoint start = std::chrono::steady_clock::now();
  run(total / kShardBytes);
  return static_cast<double>(total / kShardBytes * kShardBytes) / SecondsSince(start) / 1e6;
}

// The median, in microseconds.
double ReadLatency(Endpoint& endpoint, ByteSpan memory, uint32_t count) {
  Countdown countdown;
  Transfer transfer(&countdown);
  std::vector<double> times;
  for (uint32_t i = 0; i < count + 10; ++i) {
    const TimePoint start = std::chrono::steady_clock::now();
    countdown.Begin();
    endpoint.Read(RemoteSpan(kWeights, 0, 64), memory.first(64), 0, &transfer);
    countdown.Wait(0);
    if (i >= 10) times.push_back(SecondsSince(start) * 1e6);
  }
  std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
  return times[times.size() / 2];
}

struct Settings {
  uint64_t bytes = 512 * kMiB;
  uint32_t reads = 2000;
  uint64_t shards = 2;  // that the transfers go round in, as perftest does
  VerbsOptions verbs = {.use = VerbsUse::kOn};
};

void Run(const Settings& settings) {
  const uint64_t region_bytes = settings.shards * kShardBytes;
  const auto weights = OrDie(LocalRegion::Create("weights", region_bytes, Access::kRemoteRead));
  const auto inbox = OrDie(LocalRegion::Create("inbox", region_bytes, Access::kRemoteWrite));
  SessionTerms terms;
  terms.secret = RandomSecret();
  terms.exposed = {{kWeights, weights}, {kInbox, inbox}};
  terms.connections = 2;
  OneSession session(terms);
  AcceptorOptions accept;
  accept.tcp_address = "127.0.0.1:0";
  accept.verbs = settings.verbs;
  const auto acceptor = OrDie(MakeAcceptor(accept, &session));
  const auto dialler = OrDie(MakeDialler(settings.verbs));
  DialOptions dial;
  dial.kind = Kind::kVerbs;
  dial.address = fmt::format("127.0.0.1:{}", acceptor->tcp_port());
  dial.secret = terms.secret;
  dial.expected = {{kWeights, region_bytes, Access::kRemoteRead},
                   {kInbox, region_bytes, Access::kRemoteWrite}};
  dial.deadline = DeadlineAfter(30'000);
  NoEvents events;
  std::unique_ptr<Endpoint> endpoint = OrDie(dialler->Dial(dial, &events));
  const Mapping pinned = OrDie(AllocateHuge(region_bytes));
  const Mapping plain = OrDie(AllocateHuge(region_bytes));
  const auto pin = OrDie(dialler->Pin(pinned.span()));
  const double write = Bandwidth(*endpoint, false, pinned.span(), settings.bytes);
  const double read = Bandwidth(*endpoint, true, pinned.span(), settings.bytes);
  const double staged_write = Bandwidth(*endpoint, false, plain.span(), settings.bytes);
  const double staged_read = Bandwidth(*endpoint, true, plain.span(), settings.bytes);
  const double latency = ReadLatency(*endpoint, pinned.span(), settings.reads);
  std::printf(
      "{\"device\": \"%s\", \"shard_bytes\": %llu, \"write_MB_per_s\": %.1f, "
      "\"read_MB_per_s\": %.1f, \"staged_write_MB_per_s\": %.1f, \"staged_read_MB_per_s\": %.1f, "
      "\"read_64_us\": %.1f}\n",
      acceptor->DescribeVerbs().c_str(), static_cast<unsigned long long>(kShardBytes), write, read,
      staged_write, staged_read, latency);
  endpoint = nullptr;
  acceptor->Shutdown();
  session.Close();
}

}  // namespace
}  // namespace luwu::transport

int main(int argc, char** argv) {
  luwu::transport::Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    if (key == "--bytes") settings.bytes = std::stoull(argv[i + 1]);
    if (key == "--reads") settings.reads = static_cast<uint32_t>(std::stoul(argv[i + 1]));
    if (key == "--shards") settings.shards = std::stoull(argv[i + 1]);
    if (key == "--device") settings.verbs.device = argv[i + 1];
    if (key == "--mode") settings.verbs.busy_poll = std::string(argv[i + 1]) == "busy";
  }
  luwu::transport::Run(settings);
}
