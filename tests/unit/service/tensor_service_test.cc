// TensorService over real gRPC: masters in and out, bit for bit, and everything it refuses.
#include <functional>
#include <map>

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "tests/unit/service/daemon_fixture.h"

namespace luwu {
namespace {

class TensorServiceTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    epoch_ = MustCreate(SmallSpec());
    session_ = MustOpen("job", epoch_, 0);
  }

  // All of SmallSpec: value i of layer l is l * 1000 + i.
  std::vector<v1::LoadRequest> EverythingOf(uint64_t session) {
    return {Piece(session, 0, 0, 0, Values(0, 0, 64)), Piece(session, 0, 1, 0, Values(0, 64, 36)),
            Piece(session, 1, 0, 0, Values(1, 0, 10))};
  }
  static std::vector<float> Values(uint32_t layer, uint64_t first, uint64_t count) {
    std::vector<float> values;
    for (uint64_t i = 0; i < count; ++i) values.push_back(1000.0f * layer + first + i);
    return values;
  }
  // What a read gives, flat, by shard of 64 elements.
  static std::vector<float> Flat(const std::vector<v1::ReadResponse>& pieces, uint64_t elements) {
    std::vector<float> flat(elements, -1);
    for (const v1::ReadResponse& piece : pieces) {
      const uint64_t first = uint64_t{64} * piece.shard() + piece.offset();
      EXPECT_LE(first + piece.values().size() / 4, elements);
      std::memcpy(flat.data() + first, piece.values().data(), piece.values().size());
    }
    return flat;
  }

  uint64_t epoch_ = 0;
  uint64_t session_ = 0;
};

TEST_F(TensorServiceTest, WhatIsLoadedIsReadBack) {
  const auto loaded = Load(EverythingOf(session_));
  ASSERT_TRUE(loaded.ok()) << ToString(loaded.status());
  EXPECT_EQ(*loaded, 110u);
  ASSERT_TRUE(FinishLoad(session_, false).ok());
  EXPECT_TRUE(Create(SmallSpec())->loaded());
  const auto body = Read(ReadLayer("job", 0));
  ASSERT_TRUE(body.ok()) << ToString(body.status());
  EXPECT_EQ(Flat(*body, 100), Values(0, 0, 100));
  const auto table = Read(ReadLayer("job", 1));
  ASSERT_TRUE(table.ok()) << ToString(table.status());
  EXPECT_EQ(Flat(*table, 10), Values(1, 0, 10));
  for (const v1::ReadResponse& piece : *body) EXPECT_EQ(piece.version(), 0u);
}

TEST_F(TensorServiceTest, MomentsBeginAtZero) {
  ASSERT_TRUE(Load(EverythingOf(session_)).ok());
  ASSERT_TRUE(FinishLoad(session_, false).ok());
  for (const v1::Quantity quantity : {v1::QUANTITY_MOMENT1, v1::QUANTITY_MOMENT2}) {
    const auto got = Read(ReadLayer("job", 0, quantity));
    ASSERT_TRUE(got.ok()) << ToString(got.status());
    EXPECT_EQ(Flat(*got, 100), std::vector<float>(100, 0.0f));
  }
}

TEST_F(TensorServiceTest, PiecesMayComeInAnyOrderAndTwice) {
  const std::vector<float> tail = Values(0, 80, 20);
  ASSERT_TRUE(
      Load({Piece(session_, 0, 1, 16, tail), Piece(session_, 0, 1, 0, Values(0, 64, 16)),
            Piece(session_, 0, 0, 0, std::vector<float>(64, 7)),
            Piece(session_, 0, 0, 0, Values(0, 0, 64)), Piece(session_, 1, 0, 0, Values(1, 0, 10))})
          .ok());
  ASSERT_TRUE(FinishLoad(session_, false).ok());
  EXPECT_EQ(Flat(*Read(ReadLayer("job", 0)), 100), Values(0, 0, 100));
}

TEST_F(TensorServiceTest, BigLayersAreReadInPiecesOfAtMostOneMebibyte) {
  JobSpec big = SmallSpec("big");
  big.layers[0].elements = 700'000;
  big.shard_elements = 640'000;
  const uint64_t session = MustOpen("big", MustCreate(big), 0);
  ASSERT_TRUE(FinishLoad(session, true).ok());
  const auto got = Read(ReadLayer("big", 0));
  ASSERT_TRUE(got.ok()) << ToString(got.status());
  std::map<uint32_t, uint64_t> read;  // elements by shard, which come in order
  for (const v1::ReadResponse& piece : *got) {
    EXPECT_LE(piece.values().size(), 1u << 20);
    EXPECT_EQ(piece.offset(), read[piece.shard()]);
    read[piece.shard()] += piece.values().size() / 4;
  }
  EXPECT_EQ(read, (std::map<uint32_t, uint64_t>{{0, 640'000}, {1, 60'000}}));
}

TEST_F(TensorServiceTest, RefusesBadPieces) {
  struct Case {
    const char* what;
    v1::LoadRequest piece;
    ErrorCode code;
    const char* text;
  };
  v1::LoadRequest ragged = Piece(session_, 0, 0, 0, {1, 2});
  ragged.mutable_values()->pop_back();
  v1::LoadRequest oversized = Piece(session_, 0, 0, 0, {});
  oversized.set_values(std::string((1 << 20) + 4, '\0'));
  const Case cases[] = {
      {"unknown session", Piece(99, 0, 0, 0, {1}), ErrorCode::kFenced, ""},
      {"unknown layer", Piece(session_, 2, 0, 0, {1}), ErrorCode::kInvalidArgument, "layer"},
      {"unknown shard", Piece(session_, 0, 2, 0, {1}), ErrorCode::kInvalidArgument, "shard"},
      {"beyond the shard", Piece(session_, 0, 0, 63, {1, 2}), ErrorCode::kInvalidArgument, ""},
      {"offset that overflows", Piece(session_, 0, 0, ~0ull, {1, 2}), ErrorCode::kInvalidArgument,
       ""},
      {"half a float", ragged, ErrorCode::kInvalidArgument, "7 bytes"},
      {"nothing", Piece(session_, 0, 0, 0, {}), ErrorCode::kInvalidArgument, "0 bytes"},
      {"too much", oversized, ErrorCode::kInvalidArgument, "1048580 bytes"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    EXPECT_ERROR(Load({c.piece}).status(), c.code, c.text);
  }
}

TEST_F(TensorServiceTest, OneStreamBelongsToOneSession) {
  const uint64_t other = MustOpen("other", MustCreate(SmallSpec("other")), 0);
  EXPECT_ERROR(Load({Piece(session_, 0, 0, 0, {1}), Piece(other, 0, 0, 0, {1})}).status(),
               ErrorCode::kInvalidArgument, "one session");
}

TEST_F(TensorServiceTest, FinishNamesATensorThatWasNeverWritten) {
  std::vector<v1::LoadRequest> pieces = EverythingOf(session_);
  pieces.erase(pieces.begin() + 1);
  ASSERT_TRUE(Load(pieces).ok());
  EXPECT_ERROR(FinishLoad(session_, false), ErrorCode::kState, "b");
  EXPECT_TRUE(FinishLoad(session_, true).ok());
  EXPECT_EQ(Flat(*Read(ReadLayer("job", 0)), 100)[99], 0.0f);
}

TEST_F(TensorServiceTest, RefusesBadReads) {
  struct Case {
    const char* what;
    std::function<void(v1::ReadRequest*)> spoil;
    ErrorCode code;
  };
  using Request = v1::ReadRequest;
  const Case cases[] = {
      {"unknown job", [](Request* r) { r->set_job("nope"); }, ErrorCode::kNotFound},
      {"stale epoch", [&](Request* r) { r->set_epoch(epoch_ + 1); }, ErrorCode::kStaleEpoch},
      {"unknown layer", [](Request* r) { r->set_layer(2); }, ErrorCode::kInvalidArgument},
      {"no quantity", [](Request* r) { r->clear_quantity(); }, ErrorCode::kInvalidArgument},
      {"unknown quantity", [](Request* r) { r->set_quantity(static_cast<v1::Quantity>(9)); },
       ErrorCode::kInvalidArgument},
      {"quantity cut to 8 bits",
       [](Request* r) { r->set_quantity(static_cast<v1::Quantity>(257)); },
       ErrorCode::kInvalidArgument},
      {"moment of a frozen layer",
       [](Request* r) {
         r->set_layer(1);
         r->set_quantity(v1::QUANTITY_MOMENT1);
       },
       ErrorCode::kInvalidArgument},
  };
  EXPECT_ERROR(Read(ReadLayer("job", 0)).status(), ErrorCode::kState, "load");
  ASSERT_TRUE(FinishLoad(session_, true).ok());
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    v1::ReadRequest request = ReadLayer("job", 0);
    c.spoil(&request);
    EXPECT_ERROR(Read(request).status(), c.code, "");
  }
  v1::ReadRequest with_epoch = ReadLayer("job", 0);
  with_epoch.set_epoch(epoch_);
  EXPECT_TRUE(Read(with_epoch).ok());
}

TEST_F(TensorServiceTest, AReaderThatGoesAwayLeavesTheDaemonWell) {
  JobSpec big = SmallSpec("big");
  big.layers[0].elements = 1'000'000;
  big.layers[0].tensors[1].offset = 640'000;
  const uint64_t session = MustOpen("big", MustCreate(big), 0);
  ASSERT_TRUE(FinishLoad(session, true).ok());
  for (int i = 0; i < 8; ++i) {  // more than there are threads for reads
    grpc::ClientContext context;
    const auto reader = tensors_->Read(&context, ReadLayer("big", 0));
    v1::ReadResponse piece;
    ASSERT_TRUE(reader->Read(&piece));
    context.TryCancel();
    while (reader->Read(&piece)) {
    }
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(Read(ReadLayer("big", 0)).ok());
}

TEST_F(TensorServiceTest, ReadersThatStallHoldUpNobodyAndAreLimited) {
  JobSpec big = SmallSpec("big");
  big.layers[0].elements = 1'000'000;
  big.layers[0].tensors[1].offset = 640'000;
  const uint64_t session = MustOpen("big", MustCreate(big), 0);
  ASSERT_TRUE(FinishLoad(session, true).ok());
  struct Stalled {
    std::unique_ptr<v1::TensorService::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::ReadResponse>> reader;
  };
  std::vector<std::unique_ptr<Stalled>> stalled;
  const auto stall = [&] {
    Stalled& one = *stalled.emplace_back(std::make_unique<Stalled>());
    // A connection of its own, whose window does not grow: what is not read is not sent.
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    one.stub = v1::TensorService::NewStub(grpc::CreateCustomChannel(
        daemon_->config().node().control_address, grpc::InsecureChannelCredentials(), args));
    one.reader = one.stub->Read(&one.context, ReadLayer("big", 0));
    v1::ReadResponse piece;
    EXPECT_TRUE(one.reader->Read(&piece));
  };
  while (stalled.size() < 8) stall();  // more than there are threads for reads
  EXPECT_TRUE(Read(ReadLayer("big", 0)).ok());
  while (stalled.size() < 16) stall();
  EXPECT_ERROR(Read(ReadLayer("big", 1)).status(), ErrorCode::kUnavailable, "from your host");
  for (const auto& one : stalled) {
    one->context.TryCancel();
    v1::ReadResponse piece;
    while (one->reader->Read(&piece)) {
    }
    EXPECT_EQ(one->reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  // The daemon hears of it a moment later.
  const TimePoint deadline = DeadlineAfter(30'000);
  while (!Read(ReadLayer("big", 1)).ok() && MillisecondsUntil(deadline) > 0) {
  }
  EXPECT_TRUE(Read(ReadLayer("big", 1)).ok());
}

}  // namespace
}  // namespace luwu
