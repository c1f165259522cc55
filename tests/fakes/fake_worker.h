// Plays one training process against a job in memory: opens a session, links a board, writes
// gradients and trailers into its inbox, rings doorbells, and reads its board.
//
// Used by one thread at a time.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/check.h"
#include "common/base/crc32c.h"
#include "common/tensor/dtype.h"
#include "common/wire/shard_header.h"
#include "common/wire/shard_map.h"
#include "common/wire/slot_trailer.h"
#include "common/wire/window.h"
#include "server/session/session.h"
#include "server/session/session_table.h"
#include "server/step/job.h"
#include "tests/fakes/fake_board.h"

namespace luwu::fakes {

// One message of a worker: a gradient, a close, or both.
struct Push {
  uint64_t step = 0;
  uint32_t layer = 0;
  uint32_t shard = 0;  // or kAllShards
  uint32_t micro_step = 0;
  bool close = false;
  bool crc = false;
  const std::vector<float>* values = nullptr;  // of the whole layer; null: no payload
};

class FakeWorker {
 public:
  FakeWorker(std::shared_ptr<Job> job, SessionTable* table, const WorkerIdentity& identity,
             bool mapped)
      : job_(std::move(job)),
        board_(job_->spec().slots_per_worker, job_->shard_map().shard_count(),
               job_->shard_map().has_window()),
        used_(job_->spec().slots_per_worker) {
    StatusOr<std::shared_ptr<Session>> session = job_->OpenSession(identity);
    open_status_ = session.status();
    if (!session.ok()) return;
    session_ = *session;
    Link(table, mapped);
  }

  // As a process that ends in good order; without effect when the session has ended before.
  ~FakeWorker() {
    if (session_ != nullptr) job_->CloseSession(session_);
  }
  FakeWorker(const FakeWorker&) = delete;
  FakeWorker& operator=(const FakeWorker&) = delete;

  const Status& open_status() const { return open_status_; }
  Session& session() { return *session_; }
  const std::shared_ptr<Session>& session_ptr() { return session_; }
  FakeBoard& board() { return board_; }
  FakeEndpoint& endpoint() { return *endpoint_; }
  uint32_t rank() const { return session_->identity().rank; }

  // A (new) data link, as the acceptor makes one.
  void Link(SessionTable* table, bool mapped) {
    const auto exposed = session_->SetClientRegions(
        {{kRegionBoard, board_.span().size(), transport::Access::kRemoteWrite}}, 1);
    LUWU_CHECK(exposed.ok(), "regions are exchanged");
    const StatusOr<transport::SessionTerms> terms = table->Lookup(session_->id());
    LUWU_CHECK(terms.ok(), "the session may dial");
    inbox_ = terms->exposed[1].region;
    weights_ = terms->exposed[0].region;
    auto endpoint = std::make_unique<FakeEndpoint>(&board_, mapped);
    endpoint_ = endpoint.get();
    events_ = table->OnLink(session_->id(), std::move(endpoint));
  }

  Status Begin(uint64_t step, const std::vector<HyperParameters>& groups) {
    const StatusOr<BegunStep> begun = job_->BeginStep(*session_, step, groups);
    if (begun.ok()) loss_scale_ = begun->loss_scale;
    return begun.status();
  }

  float loss_scale() const { return loss_scale_; }  // of the step it has begun

  std::optional<uint32_t> FreeSlot() {
    for (uint32_t slot = 0; slot < used_.size(); ++slot) {
      if (board_.released(slot) == used_[slot]) return slot;
    }
    return std::nullopt;
  }
  uint32_t AwaitSlot() {
    std::optional<uint32_t> slot;
    LUWU_CHECK(board_.WaitFor([&] { return (slot = FreeSlot()).has_value(); }),
               "a slot is given back in time");
    return *slot;
  }
  uint32_t TimesUsed(uint32_t slot) const { return used_[slot]; }

  ByteSpan SlotBytes(uint32_t slot) {
    const uint64_t bytes = job_->shard_map().slot_bytes();
    return inbox_->span().subspan(slot * bytes, bytes);
  }
  SlotTrailer TrailerFor(const Push& push, uint32_t slot) {
    SlotTrailer trailer = {};
    trailer.flags = static_cast<uint16_t>((push.close ? kSlotClose : 0) |
                                          (push.values == nullptr ? kSlotNoPayload : 0));
    trailer.epoch = job_->epoch();
    trailer.step = push.step;
    trailer.layer = push.layer;
    trailer.shard = push.shard;
    trailer.rank = rank();
    trailer.micro_step = push.micro_step;
    trailer.slot_sequence = used_[slot];
    trailer.dtype = static_cast<uint8_t>(job_->spec().gradient_dtype);
    return trailer;
  }
  // Writes payload and trailer into the slot, as one remote write does.
  void Write(const Push& push, uint32_t slot) {
    SlotTrailer trailer = TrailerFor(push, slot);
    const ByteSpan bytes = SlotBytes(slot);
    if (push.values != nullptr) {
      const JobSpec& spec = job_->spec();
      const ShardRange range =
          RangeOfShard(spec.layers[push.layer].elements, spec.shard_elements, push.shard);
      trailer.payload_bytes =
          static_cast<uint32_t>(range.elements * DTypeBytes(spec.gradient_dtype));
      std::byte* payload = bytes.data() + SlotPayloadOffset(bytes.size(), trailer.payload_bytes);
      ConvertElements(DType::kFloat32,
                      reinterpret_cast<const std::byte*>(push.values->data() + range.first),
                      spec.gradient_dtype, payload, range.elements);
      if (push.crc) {
        trailer.flags |= kSlotPayloadCrc;
        trailer.payload_crc32c = Crc32c({payload, trailer.payload_bytes});
      }
    }
    SealSlotTrailer(&trailer);
    WriteTrailer(trailer, slot);
  }
  void WriteTrailer(const SlotTrailer& trailer, uint32_t slot) {
    const ByteSpan bytes = SlotBytes(slot);
    std::memcpy(bytes.data() + bytes.size() - sizeof(trailer), &trailer, sizeof(trailer));
  }
  void Ring(uint32_t slot) { events_->OnNotify(slot); }
  // Write and doorbell; the slot counts as used.
  void Send(const Push& push, uint32_t slot) {
    Write(push, slot);
    ++used_[slot];
    Ring(slot);
  }
  void Send(const Push& push) { Send(push, AwaitSlot()); }
  void MarkUsed(uint32_t slot) { ++used_[slot]; }

  // The link breaks, as a transport reports it.
  void Unlink(const Status& why) {
    endpoint_->Break();
    events_->OnDisconnect(why);
  }

  // A served copy as a worker reads it, payload before header.
  struct Copy {
    std::vector<std::byte> payload;
    ShardHeader header = {};
  };
  // Of a version that the board has announced. A copy that is not in memory is asked for, and again
  // when it has gone before it was read; after 30 s the header is what was read last.
  Copy ReadCopy(uint32_t index, uint64_t version) {
    const ShardMap& map = job_->shard_map();
    if (!map.has_window()) {
      return Take(index, map.payload_offset(index, version),
                  ShardMap::header_offset(index, version));
    }
    Copy copy;
    uint64_t gone = 0;
    board_.WaitFor([&] {
      const WindowPlace place = board_.place(index, version);
      if (place.residence == gone) {
        events_->OnNotify(WantOf(index, version));
        return false;
      }
      LUWU_CHECK(place.slot < map.window_slots(), "a slot of the window");
      copy = Take(index, map.window_payload_offset(place.slot),
                  ShardMap::window_header_offset(place.slot));
      gone = copy.header.residence == place.residence && copy.header.version == version
                 ? 0
                 : place.residence;
      return gone == 0;
    });
    return copy;
  }

 private:
  Copy Take(uint32_t index, uint64_t payload_offset, uint64_t header_offset) {
    const uint64_t bytes =
        job_->shard_map().shards()[index].elements * DTypeBytes(job_->spec().served_dtype);
    const ConstByteSpan payload = weights_->span().subspan(payload_offset, bytes);
    Copy copy = {{payload.begin(), payload.end()}, {}};
    std::atomic_signal_fence(std::memory_order_acquire);
    std::memcpy(&copy.header, weights_->span().data() + header_offset, sizeof(copy.header));
    return copy;
  }

  const std::shared_ptr<Job> job_;
  FakeBoard board_;
  std::vector<uint32_t> used_;
  Status open_status_;
  float loss_scale_ = 0;
  std::shared_ptr<Session> session_;
  std::shared_ptr<transport::LocalRegion> inbox_;
  std::shared_ptr<transport::LocalRegion> weights_;
  FakeEndpoint* endpoint_ = nullptr;  // owned by the session
  transport::LinkEvents* events_ = nullptr;
};

}  // namespace luwu::fakes
