// Errors of calls as people read them.
#include "client/cli/call_error.h"

#include <gtest/gtest.h>

#include "client/cli/suggest.h"

namespace luwu::cli {
namespace {

const Callee kNode = {"node1", "10.0.0.1:7070", 1500};

bool Says(const Status& status, const std::string& what) {
  return MessageOf(status).find(what) != std::string::npos;
}

TEST(CallError, NodeThatGivesNoAnswerIsNamedWithTheTimeItWasGiven) {
  const Status said = CallError(Error(ErrorCode::kDeadline, "Deadline Exceeded"), kNode);
  EXPECT_EQ(CodeOf(said), ErrorCode::kDeadline);
  EXPECT_TRUE(Says(said, "node node1 (10.0.0.1:7070)")) << MessageOf(said);
  EXPECT_TRUE(Says(said, "1500 ms")) << MessageOf(said);
  EXPECT_FALSE(Says(said, "Exceeded")) << MessageOf(said);
}

TEST(CallError, WhatADaemonSaysStaysBehindItsName) {
  const Status said = CallError(Error(ErrorCode::kDeadline, "node n2 has not stored it"), kNode);
  EXPECT_EQ(MessageOf(said), "node node1 (10.0.0.1:7070): node n2 has not stored it");
}

TEST(CallError, NobodyThereIsASentenceWithTheAddressAndWhatToDo) {
  const Status said = CallError(
      Error(
          ErrorCode::kUnavailable,
          "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:7070: Failed to "
          "connect to remote host: Connection refused"),
      {"", "10.0.0.1:7070", 2000});
  EXPECT_TRUE(
      MessageOf(said).starts_with("no daemon answers at 10.0.0.1:7070 (cannot connect: "
                                  "connection refused); is luwud running there?"))
      << MessageOf(said);
}

TEST(CallError, ConnectionThatBreaksIsADaemonThatHasEnded) {
  const Status said = CallError(Error(ErrorCode::kUnavailable, "Socket closed"), kNode);
  EXPECT_TRUE(Says(said, "node node1 (10.0.0.1:7070) has ended")) << MessageOf(said);
}

TEST(CallError, SuccessAndCtrlCStayWhatTheyAre) {
  EXPECT_TRUE(CallError(OkStatus(), kNode).ok());
  EXPECT_EQ(MessageOf(CallError(Error(ErrorCode::kCancelled, "stopped"), kNode)), "stopped");
}

TEST(Suggest, NearestCommandOrNone) {
  const std::vector<std::string> commands = {"status", "jobs", "health", "delete"};
  EXPECT_EQ(NearestOf("stauts", commands), "status");
  EXPECT_EQ(NearestOf("job", commands), "jobs");
  EXPECT_EQ(NearestOf("deleet", commands), "delete");
  EXPECT_EQ(NearestOf("frobnicate", commands), "");
  EXPECT_NE(UnknownCommand("x", commands).find("status, jobs, health, delete"), std::string::npos);
}

}  // namespace
}  // namespace luwu::cli
