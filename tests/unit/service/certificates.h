// Certificates for tests, made by scripts/dev-certs, and channels that show them.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <gtest/gtest.h>

#include "common/base/tls_files.h"
#include "common/rpc/channel.h"

namespace luwu {

class Certificates {
 public:
  // Of a CA of its own.
  Certificates() {
    std::string pattern = testing::TempDir() + "luwu-certs-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    Make(folder_, 30);
  }
  ~Certificates() { std::filesystem::remove_all(folder_); }
  Certificates(const Certificates&) = delete;
  Certificates& operator=(const Certificates&) = delete;

  // "daemon", "trainer", "observer", "operator"
  TlsFiles Of(const std::string& name) const { return Files(folder_, name); }
  // Of the same CA, valid until yesterday.
  TlsFiles Expired(const std::string& name) const {
    const std::string folder = folder_ + "/expired";
    if (!std::filesystem::exists(folder)) {
      std::filesystem::create_directory(folder);
      for (const char* file : {"/ca.pem", "/ca.key"}) {
        std::filesystem::copy_file(folder_ + file, folder + file);
      }
      Make(folder, -1);
    }
    return Files(folder, name);
  }
  // Shown to a daemon of this CA, whose own certificate is believed.
  TlsFiles Unknown(const Certificates& other, const std::string& name) const {
    TlsFiles files = other.Of(name);
    files.ca = folder_ + "/ca.pem";
    return files;
  }
  // Unlike MakeCredentials it takes any files; without a certificate it shows none.
  static rpc::Credentials Show(const TlsFiles& files) {
    using Provider = grpc::experimental::FileWatcherCertificateProvider;
    grpc::experimental::TlsChannelCredentialsOptions options;
    if (files.certificate.empty()) {
      options.set_certificate_provider(std::make_shared<Provider>(files.ca, 60));
    } else {
      options.set_certificate_provider(
          std::make_shared<Provider>(files.key, files.certificate, files.ca, 60));
      options.watch_identity_key_cert_pairs();
    }
    options.watch_root_certs();
    return grpc::experimental::TlsCredentials(options);
  }

 private:
  static void Make(const std::string& folder, int days) {
    const std::string command =
        "DAYS=" + std::to_string(days) + " " LUWU_DEV_CERTS " '" + folder + "' > /dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
  static TlsFiles Files(const std::string& folder, const std::string& name) {
    const std::string both = folder + "/" + name + ".pem";
    return {.certificate = both, .key = both, .ca = folder + "/ca.pem"};
  }

  std::string folder_;
};

}  // namespace luwu
