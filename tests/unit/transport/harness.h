// What the transport tests share: recorders for both ends, and a pair of ends with exposed memory.
//
// The daemon exposes weights (client reads) and inbox (client writes); the client exposes board
// (daemon writes) and outbox (daemon reads). The tests see all four directly, as the oracle.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/sync.h"
#include "common/transport/connect.h"
#include "common/transport/fault/fault_endpoint.h"
#include "common/transport/link.h"
#include "common/transport/region.h"

namespace luwu::transport {

inline constexpr RegionId kWeights = 1;
inline constexpr RegionId kInbox = 2;
inline constexpr RegionId kBoard = 3;
inline constexpr RegionId kOutbox = 4;

// Far beyond what any wait here takes; a test that gets there has failed.
TimePoint Patience();

std::vector<std::byte> RandomBytes(uint64_t bytes, uint64_t seed);
inline ConstByteSpan Bytes(const std::vector<std::byte>& bytes) { return bytes; }

// A path for a socket that no other test or process uses.
std::string FreshSocketPath();

// A request that can be waited for, and that counts its completions.
class TestRequest final : public Request {
 public:
  void Complete(const Status& status) override;
  // OK when it has completed in time, with its result in *result.
  bool Wait(Status* result);
  Status Result();  // waits; fails the test when nothing comes
  int completions();

 private:
  Mutex mutex_;
  CondVar changed_;
  int completions_ LUWU_GUARDED_BY(mutex_) = 0;
  Status status_ LUWU_GUARDED_BY(mutex_);
};

class TestEvents final : public LinkEvents {
 public:
  void OnNotify(uint32_t immediate) override;
  void OnDisconnect(const Status& why) override;

  // The first `count` immediates, or fewer when they do not come.
  std::vector<uint32_t> WaitNotifies(size_t count);
  // Runs on the progress thread with each immediate. Set it before any can come.
  void set_on_notify(std::function<void(uint32_t)> hook) { hook_ = std::move(hook); }
  Status WaitDisconnect();  // OK when none comes
  int disconnects();

 private:
  std::function<void(uint32_t)> hook_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<uint32_t> immediates_ LUWU_GUARDED_BY(mutex_);
  int disconnects_ LUWU_GUARDED_BY(mutex_) = 0;
  Status why_ LUWU_GUARDED_BY(mutex_);
};

// Knows sessions and keeps the daemon's endpoints, wrapped when a plan says so.
class TestAuthority final : public SessionAuthority {
 public:
  struct Linked {
    std::unique_ptr<TestEvents> events;  // outlive the endpoint
    std::unique_ptr<Endpoint> endpoint;
  };

  void Admit(uint64_t session_id, SessionTerms terms);
  void set_plan(const FaultPlan& plan) { plan_ = plan; }
  // Runs at the start of OnLink, on the progress thread.
  void set_on_link(std::function<void()> hook) { on_link_ = std::move(hook); }
  // Takes the next link of the session over; waits for it. Empty when none comes.
  Linked WaitLink(uint64_t session_id);
  size_t lookups();

  StatusOr<SessionTerms> Lookup(uint64_t session_id) override;
  LinkEvents* OnLink(uint64_t session_id, std::unique_ptr<Endpoint> endpoint) override;

 private:
  FaultPlan plan_;
  std::function<void()> on_link_;
  Mutex mutex_;
  CondVar changed_;
  size_t lookups_ LUWU_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, SessionTerms> terms_ LUWU_GUARDED_BY(mutex_);
  std::multimap<uint64_t, Linked> links_ LUWU_GUARDED_BY(mutex_);
};

struct LinkKind {
  std::string name;
  Kind kind = Kind::kShm;
  uint32_t connections = 1;
  bool wrapped = false;
  FaultPlan plan = {};
  VerbsOptions verbs = {};
  bool across_processes = true;  // the fake fabric is in one process
};
// shm, tcp, and verbs over the fake fabric; with LUWU_TEST_VERBS=device in the environment instead
// verbs over the devices of this machine (scripts/rdma-vm).
std::vector<LinkKind> AllLinkKinds();
// Those of them whose ends may be two processes.
std::vector<LinkKind> LinkKindsAcrossProcesses();

// A daemon that accepts all transports, and what it takes to dial it.
class Daemon {
 public:
  explicit Daemon(uint64_t region_bytes = 4 * kMiB, std::vector<uint32_t> shm_allowed_uids = {},
                  const VerbsOptions& verbs = {.use = VerbsUse::kOff});
  explicit Daemon(const LinkKind& kind) : Daemon(4 * kMiB, {}, kind.verbs) {}
  ~Daemon();

  DialOptions Options(const LinkKind& kind, uint64_t session_id = 1) const;
  SessionTerms Terms(uint32_t connections) const;
  StatusOr<std::unique_ptr<Endpoint>> Dial(const DialOptions& options, TestEvents* events);

  Secret secret = RandomSecret();
  std::shared_ptr<LocalRegion> weights, inbox, board, outbox;
  std::string shm_path = FreshSocketPath();
  TestAuthority authority;
  std::unique_ptr<Acceptor> acceptor;
  std::unique_ptr<Dialler> dialler;
};

// Both ends of one link of session 1.
class LinkPair {
 public:
  explicit LinkPair(const LinkKind& kind, uint64_t region_bytes = 4 * kMiB);
  ~LinkPair();

  Daemon daemon;
  TestEvents client_events;
  std::unique_ptr<Endpoint> client;
  TestAuthority::Linked server;
};

// Post and wait.
Status WriteNow(Endpoint& endpoint, ConstByteSpan source, RemoteSpan target, uint32_t lane = 0);
Status ReadNow(Endpoint& endpoint, RemoteSpan source, ByteSpan target, uint32_t lane = 0);

}  // namespace luwu::transport
