// A claim is one owner's until it is given up, its last call ends, or nothing is heard for long.
#include "server/service/interchange_claims.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <utility>

#include "server/service/interchange_work.h"

namespace luwu {
namespace {

TEST(InterchangeClaims, AreOneOwnersUntilTheyAreGivenUp) {
  InterchangeClaims claims;
  EXPECT_TRUE(claims.Take("job", 1));
  EXPECT_TRUE(claims.Take("job", 1));
  EXPECT_FALSE(claims.Take("job", 2));
  EXPECT_TRUE(claims.Take("other", 2));
  claims.GiveUp("job", 2);  // not its own
  EXPECT_FALSE(claims.Take("job", 2));
  claims.GiveUp("job", 1);
  EXPECT_TRUE(claims.Take("job", 2));
  EXPECT_FALSE(claims.BeginCall("job", 1));
}

TEST(InterchangeClaims, OfSilentOwnersMayBeTakenUnlessACallIsInProgress) {
  const auto claims = std::make_shared<InterchangeClaims>(0);  // anybody is silent at once
  EXPECT_TRUE(claims->Take("job", 1));
  EXPECT_TRUE(claims->Take("job", 2));
  {
    ClaimedCall call(claims, "job", 2);
    EXPECT_TRUE(call.begun());
    EXPECT_FALSE(claims->Take("job", 3));
    EXPECT_FALSE(ClaimedCall(claims, "job", 3).begun());
    call.Keep();
  }
  EXPECT_TRUE(ClaimedCall(claims, "job", 2).begun()) << "nobody has wanted it";
  EXPECT_TRUE(claims->Take("job", 3));
}

TEST(InterchangeClaims, EndWithACallThatFailsOrIsGivenUp) {
  const auto claims = std::make_shared<InterchangeClaims>();
  for (const bool keep : {false, true}) {
    ASSERT_TRUE(claims->Take("job", 1));
    {
      ClaimedCall call(claims, "job", 1);
      if (keep) call.Keep();
    }
    EXPECT_EQ(claims->Take("job", 2), !keep);
    claims->GiveUp("job", 2);
  }
  {
    ClaimedCall call(claims, "job", 1);
    call.Keep();
    claims->GiveUp("job", 1);
    EXPECT_FALSE(claims->Take("job", 2)) << "the call is still at it";
  }
  EXPECT_TRUE(claims->Take("job", 2));
}

TEST(InterchangeClaims, KeepTheirLockAndCloseIt) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd reader(ends[0]);
  char byte = 0;
  InterchangeClaims claims(0);
  ASSERT_TRUE(claims.Take("draft", 1, UniqueFd(ends[1])));
  EXPECT_EQ(::read(reader.get(), &byte, 1), -1) << "still open";
  claims.RemoveSilent();
  EXPECT_EQ(::read(reader.get(), &byte, 1), 0) << "closed";
}

}  // namespace
}  // namespace luwu
