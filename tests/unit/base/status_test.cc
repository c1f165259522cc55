#include "common/base/status.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace luwu {
namespace {

constexpr ErrorCode kAllErrors[] = {
    ErrorCode::kInvalidArgument, ErrorCode::kBadHandle,
    ErrorCode::kBadStruct,       ErrorCode::kAbiVersion,
    ErrorCode::kUnsupported,     ErrorCode::kNotFound,
    ErrorCode::kSchemaMismatch,  ErrorCode::kPermission,
    ErrorCode::kState,           ErrorCode::kLayerClosed,
    ErrorCode::kStaleVersion,    ErrorCode::kStepMismatch,
    ErrorCode::kRankTaken,       ErrorCode::kResourceExhausted,
    ErrorCode::kAlreadyExists,   ErrorCode::kDeadline,
    ErrorCode::kWorkerLost,      ErrorCode::kUnavailable,
    ErrorCode::kCancelled,       ErrorCode::kFenced,
    ErrorCode::kNodeLost,        ErrorCode::kStaleEpoch,
    ErrorCode::kJobFailed,       ErrorCode::kCorrupt,
    ErrorCode::kInternal,
};

TEST(StatusTest, EveryCodeAndItsMessageSurvive) {
  std::set<std::string_view> names;
  for (const ErrorCode code : kAllErrors) {
    const Status status = Error(code, "rank {} is gone", 3);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(CodeOf(status), code);
    EXPECT_EQ(MessageOf(status), "rank 3 is gone");
    EXPECT_EQ(ToString(status), fmt::format("{}: rank 3 is gone", ErrorCodeName(code)));
    EXPECT_NE(ErrorCodeName(code), "unknown error");
    names.insert(ErrorCodeName(code));
  }
  EXPECT_EQ(names.size(), std::size(kAllErrors)) << "two codes share a name";
  EXPECT_EQ(ErrorCodeName(static_cast<ErrorCode>(-9999)), "unknown error");
}

TEST(StatusTest, OkHasItsOwnForm) {
  EXPECT_EQ(CodeOf(OkStatus()), ErrorCode::kOk);
  EXPECT_EQ(ToString(OkStatus()), "ok");
  EXPECT_EQ(MessageOf(OkStatus()), "");
}

TEST(StatusTest, StatusesMadeElsewhereMapToTheNearestCode) {
  EXPECT_EQ(CodeOf(absl::DeadlineExceededError("x")), ErrorCode::kDeadline);
  EXPECT_EQ(CodeOf(absl::UnavailableError("x")), ErrorCode::kUnavailable);
  EXPECT_EQ(CodeOf(absl::InvalidArgumentError("x")), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(absl::OutOfRangeError("x")), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(absl::DataLossError("x")), ErrorCode::kCorrupt);
  EXPECT_EQ(CodeOf(absl::UnknownError("x")), ErrorCode::kInternal);
}

TEST(StatusTest, AnnotateKeepsTheCode) {
  const Status status = Annotate(Error(ErrorCode::kFenced, "replaced"), "session 7");
  EXPECT_EQ(CodeOf(status), ErrorCode::kFenced);
  EXPECT_EQ(MessageOf(status), "session 7: replaced");
  EXPECT_TRUE(Annotate(OkStatus(), "session 7").ok());
}

StatusOr<int> Half(int value) {
  if (value % 2 != 0) return Error(ErrorCode::kInvalidArgument, "{} is odd", value);
  return value / 2;
}

StatusOr<int> Quarter(int value) {
  ASSIGN_OR_RETURN(const int half, Half(value));
  ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

Status CheckQuarter(int value, bool* reached) {
  RETURN_IF_ERROR(Quarter(value).status());
  *reached = true;
  return OkStatus();
}

TEST(StatusTest, MacrosReturnTheFirstError) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(MessageOf(Quarter(7).status()), "7 is odd");
  EXPECT_EQ(MessageOf(Quarter(6).status()), "3 is odd");
  bool reached = false;
  EXPECT_EQ(CodeOf(CheckQuarter(6, &reached)), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(reached);
  EXPECT_TRUE(CheckQuarter(8, &reached).ok());
  EXPECT_TRUE(reached);
}

TEST(StatusDeathTest, AnErrorWithoutACodeIsADefect) {
  EXPECT_DEATH((void)MakeError(ErrorCode::kOk, "x"), "needs an error code");
}

}  // namespace
}  // namespace luwu
