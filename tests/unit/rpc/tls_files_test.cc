// Errors of TLS files name the file and what is wrong with it.
#include "common/base/tls_files.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace luwu {
namespace {

class TlsFilesTest : public ::testing::Test {
 protected:
  TlsFilesTest() {
    std::string pattern = testing::TempDir() + "luwu-tls-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    EXPECT_EQ(std::system((LUWU_DEV_CERTS " '" + folder_ + "' > /dev/null").c_str()), 0);
  }
  ~TlsFilesTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  TlsFiles Good() const {
    return {.certificate = Path("daemon.pem"), .key = Path("daemon.pem"), .ca = Path("ca.pem")};
  }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name)) << text;
    return Path(name);
  }
  static void ExpectError(const TlsFiles& files, const std::string& file, const std::string& why) {
    const Status status = CheckTlsFiles(files);
    EXPECT_EQ(CodeOf(status), ErrorCode::kInvalidArgument);
    EXPECT_NE(MessageOf(status).find(file), std::string::npos) << MessageOf(status);
    EXPECT_NE(MessageOf(status).find(why), std::string::npos) << MessageOf(status);
  }

  std::string folder_;
};

TEST_F(TlsFilesTest, NoneAndGoodOnesAreFine) {
  EXPECT_TRUE(CheckTlsFiles({}).ok());
  EXPECT_TRUE(CheckTlsFiles(Good()).ok()) << ToString(CheckTlsFiles(Good()));
}

TEST_F(TlsFilesTest, AllThreeAreNeeded) {
  TlsFiles files = Good();
  files.ca.clear();
  ExpectError(files, "the CA is not given", "");
  files = Good();
  files.key.clear();
  ExpectError(files, "the key is not given", "");
  ExpectError({.certificate = "", .key = "", .ca = Path("ca.pem")}, "the certificate is not", "");
}

TEST_F(TlsFilesTest, TheFileAtFaultIsNamed) {
  TlsFiles files = Good();
  files.certificate = Path("missing.pem");
  ExpectError(files, "certificate " + Path("missing.pem"), "No such file");
  files = Good();
  files.key = Write("empty.key", "");
  ExpectError(files, "key " + Path("empty.key"), "no PEM private key");
  files = Good();
  files.ca = Write("ca.txt", "not a certificate\n");
  ExpectError(files, "CA " + Path("ca.txt"), "no PEM certificate");
  files = Good();
  files.key = Path("trainer.pem");
  ExpectError(files, "key " + Path("trainer.pem"), "belongs to another certificate");
  files = Good();
  files.certificate = folder_;
  ExpectError(files, "certificate " + folder_, "cannot be read");
}

TEST_F(TlsFilesTest, AnExpiredCertificateIsOfNoUse) {
  EXPECT_EQ(std::system(("DAYS=-1 " LUWU_DEV_CERTS " '" + folder_ + "' > /dev/null").c_str()), 0);
  ExpectError(Good(), "certificate " + Path("daemon.pem"), "has expired");
}

TEST_F(TlsFilesTest, AKeyWithAPassphraseIsRefusedWithoutAsking) {
  const std::string path = Path("locked.key");
  EXPECT_EQ(std::system(("openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 "
                         "-aes256 -pass pass:secret -out '" +
                         path + "' 2> /dev/null")
                            .c_str()),
            0);
  TlsFiles files = Good();
  files.key = path;
  ExpectError(files, "key " + path, "without a passphrase");
}

}  // namespace
}  // namespace luwu
