#include "common/rpc/tls.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <grpc/support/log.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

namespace luwu::rpc {
namespace {

using Provider = grpc::experimental::FileWatcherCertificateProvider;

std::shared_ptr<Provider> Watch(const TlsFiles& files, uint32_t refresh_s) {
  return std::make_shared<Provider>(files.key, files.certificate, files.ca, refresh_s);
}

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::atomic<void (*)(const std::string&)> g_tell{nullptr};
std::atomic<bool> g_passes_on{true};

// "Handshake failed with fatal error SSL_ERROR_SSL: error:0A0000C7:SSL routines::peer did ..."
void OnGrpcLine(gpr_log_func_args* line) {
  constexpr std::string_view kStart = "Handshake failed with fatal error ";
  std::string_view text(line->message);
  if (!text.starts_with(kStart)) {
    if (g_passes_on) std::fprintf(stderr, "%s:%d] %s\n", line->file, line->line, line->message);
    return;
  }
  text.remove_prefix(kStart.size());
  if (const size_t reason = text.rfind("::"); reason != std::string_view::npos) {
    text.remove_prefix(reason + 2);
  }
  while (!text.empty() && (text.back() == '.' || text.back() == '\n')) text.remove_suffix(1);
  g_tell.load()(std::string(text));
}

}  // namespace

StatusOr<Credentials> MakeCredentials(const TlsFiles& files, uint32_t refresh_s) {
  if (files.empty()) return Credentials();
  RETURN_IF_ERROR(CheckTlsFiles(files));
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watch(files, refresh_s));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const TlsFiles& files,
                                                                         uint32_t refresh_s) {
  if (files.empty()) return grpc::InsecureServerCredentials();
  RETURN_IF_ERROR(CheckTlsFiles(files));
  grpc::experimental::TlsServerCredentialsOptions options(Watch(files, refresh_s));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

TlsFiles TlsFilesFromEnvironment() {
  return {.certificate = FromEnvironment("LUWU_TLS_CERTIFICATE"),
          .key = FromEnvironment("LUWU_TLS_KEY"),
          .ca = FromEnvironment("LUWU_TLS_CA")};
}

void ObserveFailedHandshakes(void (*tell)(const std::string& why)) {
  const std::string verbosity = FromEnvironment("GRPC_VERBOSITY");
  if (!verbosity.empty() && verbosity != "NONE") return;
  if (g_tell.exchange(tell) != nullptr) return;
  g_passes_on = verbosity.empty();
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  gpr_set_log_function(OnGrpcLine);
}

std::string TlsHint(const std::string& message) {
  const auto has = [&](const char* words) { return message.find(words) != std::string::npos; };
  if (has("wrong version number")) return " (what answers there does not speak TLS)";
  if (has("certificate verify failed") || has("Hostname Verification Check failed")) {
    return " (the daemon's certificate is of another CA, for another host, or has expired)";
  }
  if (has("Socket closed") || has("Connection reset by peer")) {
    return " (perhaps one end wants TLS and the other does not, or the daemon refuses the "
           "certificate; its log tells)";
  }
  return "";
}

}  // namespace luwu::rpc
