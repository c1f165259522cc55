#include "tests/unit/transport/harness.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <random>
#include <utility>

#include "tests/fakes/fake_verbs.h"

#if defined(__SANITIZE_THREAD__)
// The packaged Abseil is not instrumented, so the sanitizer misses the reference count by which
// threads share an error status, and takes its release for a race.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:absl::*::Status::Unref\n"; }
#endif

namespace luwu::transport {

TimePoint Patience() { return DeadlineAfter(60'000); }

std::vector<std::byte> RandomBytes(uint64_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

std::string FreshSocketPath() {
  static std::atomic<int> counter{0};
  return fmt::format("{}luwu-tr-{}-{}.sock", ::testing::TempDir(), ::getpid(), ++counter);
}

void TestRequest::Complete(const Status& status) {
  MutexLock lock(mutex_);
  ++completions_;
  status_ = status;
  changed_.NotifyAll();
}

bool TestRequest::Wait(Status* result) {
  const TimePoint deadline = Patience();
  MutexLock lock(mutex_);
  while (completions_ == 0) {
    if (!changed_.WaitUntil(mutex_, deadline)) return false;
  }
  *result = status_;
  return true;
}

Status TestRequest::Result() {
  Status result;
  if (Wait(&result)) return result;
  ADD_FAILURE() << "a request never completed";
  return Error(ErrorCode::kInternal, "never completed");
}

int TestRequest::completions() {
  MutexLock lock(mutex_);
  return completions_;
}

void TestEvents::OnNotify(uint32_t immediate) {
  if (hook_) hook_(immediate);
  MutexLock lock(mutex_);
  EXPECT_EQ(disconnects_, 0) << "a notification after OnDisconnect";
  immediates_.push_back(immediate);
  changed_.NotifyAll();
}

void TestEvents::OnDisconnect(const Status& why) {
  MutexLock lock(mutex_);
  ++disconnects_;
  why_ = why;
  changed_.NotifyAll();
}

std::vector<uint32_t> TestEvents::WaitNotifies(size_t count) {
  const TimePoint deadline = Patience();
  MutexLock lock(mutex_);
  while (immediates_.size() < count) {
    if (!changed_.WaitUntil(mutex_, deadline)) break;
  }
  return immediates_;
}

Status TestEvents::WaitDisconnect() {
  const TimePoint deadline = Patience();
  MutexLock lock(mutex_);
  while (disconnects_ == 0) {
    if (!changed_.WaitUntil(mutex_, deadline)) break;
  }
  return why_;
}

int TestEvents::disconnects() {
  MutexLock lock(mutex_);
  return disconnects_;
}

void TestAuthority::Admit(uint64_t session_id, SessionTerms terms) {
  MutexLock lock(mutex_);
  terms_[session_id] = std::move(terms);
}

StatusOr<SessionTerms> TestAuthority::Lookup(uint64_t session_id) {
  MutexLock lock(mutex_);
  ++lookups_;
  const auto found = terms_.find(session_id);
  if (found == terms_.end()) {
    return Error(ErrorCode::kNotFound, "no session {}", session_id);
  }
  return found->second;
}

size_t TestAuthority::lookups() {
  MutexLock lock(mutex_);
  return lookups_;
}

LinkEvents* TestAuthority::OnLink(uint64_t session_id, std::unique_ptr<Endpoint> endpoint) {
  if (on_link_) on_link_();
  Linked linked{std::make_unique<TestEvents>(), std::move(endpoint)};
  if (plan_.any()) linked.endpoint = WrapWithFaults(std::move(linked.endpoint), plan_);
  LinkEvents* events = linked.events.get();
  MutexLock lock(mutex_);
  links_.emplace(session_id, std::move(linked));
  changed_.NotifyAll();
  return events;
}

TestAuthority::Linked TestAuthority::WaitLink(uint64_t session_id) {
  const TimePoint deadline = Patience();
  MutexLock lock(mutex_);
  while (true) {
    const auto found = links_.find(session_id);
    if (found != links_.end()) {
      Linked linked = std::move(found->second);
      links_.erase(found);
      return linked;
    }
    if (!changed_.WaitUntil(mutex_, deadline)) return {};
  }
}

namespace {

// One for the process: both ends of a link must be on it.
FakeVerbs* Fabric() {
  static FakeVerbs fabric;
  return &fabric;
}

std::vector<LinkKind> VerbsKinds(VerbsApi* api) {
  const bool real = api == nullptr;
  const std::string name = real ? "verbs" : "fake_verbs";
  VerbsOptions plain = {.use = VerbsUse::kOn, .api = api};
  VerbsOptions registered = plain;
  registered.windows = false;
  registered.chunk_bytes = 256 * kKiB;
  VerbsOptions busy = plain;
  busy.busy_poll = true;
  busy.chunk_bytes = 64 * kKiB;
  return {{name, Kind::kVerbs, 1, false, {}, plain, real},
          {name + "_4_registered_chunks", Kind::kVerbs, 4, false, {}, registered, real},
          {name + "_2_busy", Kind::kVerbs, 2, false, {}, busy, real}};
}

}  // namespace

std::vector<LinkKind> LinkKindsAcrossProcesses() {
  std::vector<LinkKind> kinds = AllLinkKinds();
  std::erase_if(kinds, [](const LinkKind& kind) { return !kind.across_processes; });
  return kinds;
}

std::vector<LinkKind> AllLinkKinds() {
  const char* verbs = std::getenv("LUWU_TEST_VERBS");
  if (verbs != nullptr && std::string(verbs) == "device") return VerbsKinds(nullptr);
  FaultPlan delays;
  delays.delay_permille = 20;
  delays.delay_ms_max = 2;
  const VerbsOptions off = {.use = VerbsUse::kOff};
  std::vector<LinkKind> kinds = {{"shm", Kind::kShm, 1, false, {}, off},
                                 {"tcp1", Kind::kTcp, 1, false, {}, off},
                                 {"tcp4", Kind::kTcp, 4, false, {}, off},
                                 {"shm_wrapped", Kind::kShm, 1, true, {}, off},
                                 {"tcp_delayed", Kind::kTcp, 2, true, delays, off}};
  for (LinkKind& kind : VerbsKinds(Fabric())) kinds.push_back(std::move(kind));
  return kinds;
}

Daemon::Daemon(uint64_t region_bytes, std::vector<uint32_t> shm_allowed_uids,
               const VerbsOptions& verbs) {
  weights = *LocalRegion::Create("weights", region_bytes, Access::kRemoteRead);
  inbox = *LocalRegion::Create("inbox", region_bytes, Access::kRemoteWrite);
  board = *LocalRegion::Create("board", 64 * kKiB, Access::kRemoteWrite);
  outbox = *LocalRegion::Create("outbox", 64 * kKiB, Access::kRemoteRead);
  acceptor =
      *MakeAcceptor({"127.0.0.1:0", shm_path, std::move(shm_allowed_uids), verbs}, &authority);
  dialler = *MakeDialler(verbs);
}

Daemon::~Daemon() {
  dialler.reset();
  acceptor.reset();
}

SessionTerms Daemon::Terms(uint32_t connections) const {
  SessionTerms terms;
  terms.secret = secret;
  terms.exposed = {{kWeights, weights}, {kInbox, inbox}};
  terms.expected = {{kBoard, board->bytes(), Access::kRemoteWrite},
                    {kOutbox, outbox->bytes(), Access::kRemoteRead}};
  terms.connections = connections;
  return terms;
}

DialOptions Daemon::Options(const LinkKind& kind, uint64_t session_id) const {
  DialOptions options;
  options.kind = kind.kind;
  options.address =
      kind.kind == Kind::kShm ? shm_path : fmt::format("127.0.0.1:{}", acceptor->tcp_port());
  options.session_id = session_id;
  options.secret = secret;
  options.exposed = {{kBoard, board}, {kOutbox, outbox}};
  options.expected = {{kWeights, weights->bytes(), Access::kRemoteRead},
                      {kInbox, inbox->bytes(), Access::kRemoteWrite}};
  options.connections = kind.connections;
  options.deadline = Patience();
  return options;
}

StatusOr<std::unique_ptr<Endpoint>> Daemon::Dial(const DialOptions& options, TestEvents* events) {
  return dialler->Dial(options, events);
}

LinkPair::LinkPair(const LinkKind& kind, uint64_t region_bytes)
    : daemon(region_bytes, {}, kind.verbs) {
  daemon.authority.Admit(1, daemon.Terms(kind.connections));
  if (kind.wrapped) daemon.authority.set_plan(kind.plan);
  auto dialled = daemon.Dial(daemon.Options(kind), &client_events);
  EXPECT_TRUE(dialled.ok()) << ToString(dialled.status());
  client = *std::move(dialled);
  if (kind.wrapped) client = WrapWithFaults(std::move(client), kind.plan);
  server = daemon.authority.WaitLink(1);
  EXPECT_NE(server.endpoint, nullptr);
}

LinkPair::~LinkPair() {
  client.reset();
  server.endpoint.reset();
}

Status WriteNow(Endpoint& endpoint, ConstByteSpan source, RemoteSpan target, uint32_t lane) {
  TestRequest request;
  endpoint.Write({&source, 1}, target, lane, &request);
  return request.Result();
}

Status ReadNow(Endpoint& endpoint, RemoteSpan source, ByteSpan target, uint32_t lane) {
  TestRequest request;
  endpoint.Read(source, target, lane, &request);
  return request.Result();
}

}  // namespace luwu::transport
