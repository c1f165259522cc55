// Every call of the control plane with every kind of caller that must not make it, against a daemon
// with TLS; and that those who may are let through.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <grpcpp/generic/generic_stub.h>

#include "common/base/log.h"
#include "common/base/tls_hello.h"
#include "common/base/unique_fd.h"
#include "server/service/rpc_rules.h"
#include "tests/unit/service/certificates.h"
#include "tests/unit/service/daemon_fixture.h"

namespace luwu {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::MethodDescriptor;

constexpr uint64_t kAnswerMs = 5'000;

// What the daemon logs, until it goes.
class LogLines {
 public:
  LogLines() {
    SetLogLevel(LogLevel::kWarning);
    SetLogSink(
        [](LogLevel, const char* line, void* self) { static_cast<LogLines*>(self)->Add(line); },
        this);
  }
  ~LogLines() {
    SetLogSink(nullptr, nullptr);
    SetLogLevel(LogLevel::kOff);
  }
  size_t Count(const std::vector<std::string>& words) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<size_t>(
        std::count_if(lines_.begin(), lines_.end(), [&](const std::string& line) {
          return std::all_of(words.begin(), words.end(), [&](const std::string& word) {
            return line.find(word) != std::string::npos;
          });
        }));
  }

 private:
  void Add(const char* line) {
    const std::lock_guard<std::mutex> lock(mutex_);
    lines_.emplace_back(line);
  }
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

struct Target {
  std::string job;
  uint64_t session = 0;
};

class AccessMatrixTest : public DaemonTest {
 protected:
  DaemonConfig MakeConfig() override {
    DaemonConfig config = DaemonTest::MakeConfig();
    config.tls.files = certificates_.Of("daemon");
    config.access = {
        {.identity = "spiffe://luwu/daemon", .role = Role::kDaemon, .jobs = {}},
        {.identity = "spiffe://luwu/trainer", .role = role_, .jobs = {"own*"}},
        {.identity = "spiffe://luwu/operator", .role = Role::kOperator, .jobs = {"*"}},
    };
    if (!user_.empty()) {
      config.local_socket = socket_;
      config.access.push_back({.identity = user_, .role = role_, .jobs = {"own*"}});
    }
    return config;
  }
  void SetUp() override {}
  // With a trainer's certificate of this role, and the stubs of who may do everything.
  void Start(Role role) {
    role_ = role;
    StartDaemon();
    channel_ = To(Certificates::Show(certificates_.Of("operator")));
    jobs_ = v1::JobService::NewStub(channel_);
    sessions_ = v1::SessionService::NewStub(channel_);
    status_ = v1::StatusService::NewStub(channel_);
  }
  std::shared_ptr<grpc::Channel> To(const rpc::Credentials& credentials) const {
    return rpc::MakeChannel(daemon_->config().node().control_address, credentials);
  }
  std::shared_ptr<grpc::Channel> As(const std::string& name) const {
    return To(Certificates::Show(certificates_.Of(name)));
  }

  static std::string RequestFor(const RpcRule& rule, const Target& target) {
    std::string name(rule.method.substr(1));
    std::replace(name.begin(), name.end(), '/', '.');
    const MethodDescriptor* method = DescriptorPool::generated_pool()->FindMethodByName(name);
    if (method == nullptr) return "";  // gRPC's own: an empty request is one
    const std::unique_ptr<Message> request(
        MessageFactory::generated_factory()->GetPrototype(method->input_type())->New());
    Message* named = request.get();
    const FieldDescriptor* spec = named->GetDescriptor()->FindFieldByName("spec");
    if (spec != nullptr) named = request->GetReflection()->MutableMessage(named, spec);
    const auto* text = named->GetDescriptor()->FindFieldByName(spec == nullptr ? "job" : "name");
    if (rule.job == JobIn::kJob || rule.job == JobIn::kSpec) {
      named->GetReflection()->SetString(named, text, target.job);
    } else if (rule.job == JobIn::kSession) {
      const auto* session = request->GetDescriptor()->FindFieldByName("session_id");
      request->GetReflection()->SetUInt64(request.get(), session, target.session);
    }
    return request->SerializeAsString();
  }

  // As a call with one request and one answer, which is what streams look like on the wire, too.
  static grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel, const RpcRule& rule,
                           const Target& target) {
    grpc::ClientContext context;
    const bool endless = rule.method.ends_with("/Watch");
    rpc::SetTimeout(&context, endless ? 500 : kAnswerMs);
    const grpc::Slice bytes(RequestFor(rule, target));
    grpc::ByteBuffer request(&bytes, 1);
    grpc::ByteBuffer response;
    std::promise<grpc::Status> ended;
    grpc::GenericStub(channel).UnaryCall(
        &context, std::string(rule.method), grpc::StubOptions(), &request, &response,
        [&](const grpc::Status& status) { ended.set_value(status); });
    return ended.get_future().get();
  }

  void ExpectNoConnection(const rpc::Credentials& credentials, const std::string& why) {
    const LogLines log;
    const auto channel = To(credentials);
    for (const RpcRule& rule : RpcRules()) {
      const grpc::Status status = Call(channel, rule, {"own-1", 1});
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE)
          << rule.method << ": " << status.error_message();
    }
    if (!why.empty()) {
      EXPECT_GE(log.Count({"access_denied identity=\"none\"", "TLS handshake failed", why}), 1u)
          << why;
    }
  }

  const Certificates certificates_;
  const Certificates strangers_;
  Role role_ = Role::kTrainer;
  std::string user_;  // not empty: has an entry of the same role
  const std::string socket_ =
      testing::TempDir() + "luwu-local-" + std::to_string(::getpid()) + ".sock";
};

bool IsDenied(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::PERMISSION_DENIED;
}

TEST_F(AccessMatrixTest, WhoShowsNoGoodCertificateGetsNoConnection) {
  Start(Role::kTrainer);
  ExpectNoConnection(nullptr, "");  // plain text
  ExpectNoConnection(Certificates::Show({"", "", certificates_.Of("trainer").ca}),
                     "peer did not return a certificate");
  ExpectNoConnection(Certificates::Show(certificates_.Unknown(strangers_, "trainer")),
                     "certificate verify failed");
  ExpectNoConnection(Certificates::Show(certificates_.Expired("trainer")),
                     "certificate verify failed");
}

TEST_F(AccessMatrixTest, AClientBelievesNoDaemonOfAnotherCa) {
  Start(Role::kTrainer);
  TlsFiles files = certificates_.Of("trainer");
  files.ca = strangers_.Of("trainer").ca;
  const grpc::Status status = Call(To(Certificates::Show(files)), RpcRules().front(), {});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
}

// A trainer's certificate is good for clients only.
TEST_F(AccessMatrixTest, ATrainerCannotPoseAsADaemon) {
  Start(Role::kTrainer);
  DaemonConfig config = MakeConfig();
  config.tls.files = certificates_.Of("trainer");
  const auto impostor = Daemon::Start(config);
  ASSERT_TRUE(impostor.ok()) << ToString(impostor.status());
  const auto channel = rpc::MakeChannel((*impostor)->config().node().control_address,
                                        Certificates::Show(certificates_.Of("operator")));
  const grpc::Status status = Call(channel, RpcRules().front(), {});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
}

TEST_F(AccessMatrixTest, WhoIsNotListedMayDoNothing) {
  Start(Role::kTrainer);
  const LogLines log;
  const auto channel = As("observer");
  for (const RpcRule& rule : RpcRules()) {
    const grpc::Status status = Call(channel, rule, {"own-1", 1});
    EXPECT_TRUE(IsDenied(status)) << rule.method << ": " << status.error_message();
    EXPECT_EQ(log.Count({"access_denied identity=\"spiffe://luwu/observer\"",
                         "rpc=\"" + std::string(rule.method) + "\"", "no [[access]] entry"}),
              1u)
        << rule.method;
  }
}

TEST_F(AccessMatrixTest, EachRoleMayDoWhatTheTableSaysAndNoMore) {
  for (const Role role : {Role::kObserver, Role::kTrainer, Role::kOperator, Role::kDaemon}) {
    SCOPED_TRACE(RoleName(role));
    Start(role);
    const LogLines log;
    const auto channel = As("trainer");
    for (const RpcRule& rule : RpcRules()) {
      // Of a job that is not there and a session that is none, so that nothing happens.
      const grpc::Status status = Call(channel, rule, {"own-none", 1});
      EXPECT_EQ(IsDenied(status), !Allows(rule, role))
          << rule.method << ": " << status.error_code() << " " << status.error_message();
      EXPECT_NE(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
      EXPECT_EQ(log.Count({"access_denied identity=\"spiffe://luwu/trainer\"",
                           "rpc=\"" + std::string(rule.method) + "\""}),
                Allows(rule, role) ? 0u : 1u)
          << rule.method;
    }
    const auto unknown = RpcRule{"/luwu.v1.JobService/NoSuchCall", Role::kObserver};
    EXPECT_TRUE(IsDenied(Call(channel, unknown, {})));
  }
}

TEST_F(AccessMatrixTest, NoRoleReachesTheJobOfSomebodyElse) {
  for (const Role role : {Role::kObserver, Role::kTrainer, Role::kOperator}) {
    SCOPED_TRACE(RoleName(role));
    Start(role);
    const uint64_t epoch = MustCreate(SmallSpec("other"));
    const Target other = {"other", MustOpen("other", epoch, 0)};
    const LogLines log;
    const auto channel = As("trainer");
    for (const RpcRule& rule : RpcRules()) {
      if (rule.job == JobIn::kNowhere || !Allows(rule, role)) continue;
      const grpc::Status status = Call(channel, rule, other);
      EXPECT_TRUE(IsDenied(status)) << rule.method << ": " << status.error_message();
      EXPECT_NE(status.error_message().find("do not include 'other'"), std::string::npos)
          << status.error_message();
      EXPECT_EQ(log.Count({"access_denied identity=\"spiffe://luwu/trainer\"",
                           "rpc=\"" + std::string(rule.method) + "\"", "job=\"other\""}),
                1u)
          << rule.method;
    }
    EXPECT_TRUE(Heartbeat(other.session).ok()) << "the owner's session was touched";
  }
}

// The verbs flag takes ExchangeRegions to another thread.
TEST_F(AccessMatrixTest, RegionsForVerbsAreTheOwnersToo) {
  Start(Role::kTrainer);
  const uint64_t epoch = MustCreate(SmallSpec("other"));
  v1::ExchangeRegionsRequest request;
  request.set_session_id(MustOpen("other", epoch, 0));
  request.set_connections(1);
  request.set_verbs(true);
  const auto stub = v1::SessionService::NewStub(As("trainer"));
  EXPECT_EQ(
      CodeOf(DaemonTest::Call(stub, &v1::SessionService::Stub::ExchangeRegions, request).status()),
      ErrorCode::kPermission);
}

TEST_F(AccessMatrixTest, SecretsOfSessionsAreInNoLogAndNoStatus) {
  Start(Role::kTrainer);
  const LogLines log;
  SetLogLevel(LogLevel::kDebug);
  const uint64_t epoch = MustCreate(SmallSpec("own-1"));
  const auto opened = Open(OpenRequest("own-1", epoch, 0));
  ASSERT_TRUE(opened.ok()) << ToString(opened.status());
  ASSERT_EQ(opened->secret().size(), 32u);
  const std::string start = opened->secret().substr(0, 8);
  std::string hex;
  for (const unsigned char byte : start) hex += fmt::format("{:02x}", byte);
  EXPECT_GE(log.Count({"own-1"}), 1u);
  EXPECT_EQ(log.Count({start}), 0u);
  EXPECT_EQ(log.Count({hex}), 0u);
  const std::string status = GetStatus().SerializeAsString();
  EXPECT_NE(status.find("own-1"), std::string::npos);
  EXPECT_EQ(status.find(start), std::string::npos);
  EXPECT_EQ(status.find(hex), std::string::npos);
}

// With TLS the port says nothing by itself, and the daemon took it for dead every 20 s.
TEST_F(AccessMatrixTest, ThePortAnswersTheHelloOfTheProbe) {
  Start(Role::kTrainer);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(daemon_->control_port());
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::string hello = TlsClientHello();
  ASSERT_EQ(::send(fd.get(), hello.data(), hello.size(), 0), ssize_t(hello.size()));
  unsigned char first = 0;
  ASSERT_EQ(::recv(fd.get(), &first, 1, 0), 1);
  EXPECT_EQ(first, 0x16) << "a handshake record";
}

std::string Uid(uint32_t more = 0) { return "uid:" + std::to_string(::geteuid() + more); }

TEST_F(AccessMatrixTest, UsersOfTheHostMayDoWhatTheirEntrySays) {
  for (const std::string& user : {Uid(), "gid:" + std::to_string(::getegid())}) {
    for (const Role role : {Role::kObserver, Role::kTrainer, Role::kOperator}) {
      SCOPED_TRACE(user + " " + std::string(RoleName(role)));
      user_ = user;
      Start(role);
      const Target other = {"other", MustOpen("other", MustCreate(SmallSpec("other")), 0)};
      const LogLines log;
      const auto channel = rpc::MakeChannel("unix:" + socket_);
      for (const RpcRule& rule : RpcRules()) {
        const grpc::Status status = Call(channel, rule, {"own-none", 1});
        EXPECT_EQ(IsDenied(status), !Allows(rule, role)) << rule.method;
        EXPECT_NE(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
        if (rule.job == JobIn::kNowhere) continue;
        EXPECT_TRUE(IsDenied(Call(channel, rule, other))) << rule.method;
        EXPECT_GE(log.Count({"access_denied identity=\"" + user + "\"",
                             "rpc=\"" + std::string(rule.method) + "\""}),
                  1u)
            << rule.method;
      }
      EXPECT_TRUE(Heartbeat(other.session).ok()) << "the owner's session was touched";
      daemon_.reset();
      EXPECT_NE(::access(socket_.c_str(), F_OK), 0) << "the socket was left";
    }
  }
}

TEST_F(AccessMatrixTest, AUserWithoutAnEntryGetsNoConnection) {
  user_ = Uid(1);
  Start(Role::kOperator);
  const LogLines log;
  const auto channel = rpc::MakeChannel("unix:" + socket_);
  for (const RpcRule& rule : RpcRules()) {
    const grpc::Status status = Call(channel, rule, {"own-1", 1});
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  }
  EXPECT_GE(log.Count({"access_denied identity=\"" + Uid() + "\"", "no [[access]] entry"}), 1u);
}

// All of them are the first call of the connection.
TEST_F(AccessMatrixTest, ManyCallsAtOnceOverTheLocalSocket) {
  user_ = Uid();
  Start(Role::kObserver);
  const auto channel = rpc::MakeChannel("unix:" + socket_);
  const RpcRule list = *FindRpcRule("/luwu.v1.JobService/ListNodes");
  const RpcRule remove = *FindRpcRule("/luwu.v1.JobService/Delete");
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      EXPECT_TRUE(Call(channel, list, {}).ok());
      EXPECT_TRUE(IsDenied(Call(channel, remove, {"own-1", 0})));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(AccessMatrixTest, StatusShowsNothingOfOtherJobs) {
  Start(Role::kObserver);
  MustCreate(SmallSpec("own-1"));
  MustCreate(SmallSpec("other"));
  EXPECT_EQ(GetStatus().jobs_size(), 2);
  status_ = v1::StatusService::NewStub(As("trainer"));
  const v1::DaemonStatus seen = GetStatus();
  ASSERT_EQ(seen.jobs_size(), 1);
  EXPECT_EQ(seen.jobs(0).name(), "own-1");
  EXPECT_EQ(seen.DebugString().find("other"), std::string::npos);
}

}  // namespace
}  // namespace luwu
