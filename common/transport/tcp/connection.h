// One socket of a tcp link.
//
// Sending: a posting thread that finds the connection idle sends a small request itself, which
// saves a hop to the progress thread; everything else is sent by the progress thread when the
// socket takes it. Receiving: the progress thread alone; payload goes from the socket straight to
// its destination, which is checked before a byte is touched. Anything that the protocol does not
// allow ends the link with a reason.
#pragma once

#include <array>
#include <cstdint>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/base/unique_fd.h"
#include "common/transport/event_loop.h"
#include "common/transport/region.h"
#include "common/transport/request_list.h"
#include "common/transport/tcp/frame.h"
#include "common/transport/tcp/send_queue.h"

namespace luwu::transport {

// What a connection needs of its link; progress thread.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  // Null when no such region is exposed.
  virtual const LocalRegion* FindExposed(RegionId region) const = 0;
  virtual void OnNotify(uint32_t immediate) = 0;
  virtual void OnDone(RequestList* done) = 0;
  // Detaches all connections of the link.
  virtual void OnBroken(const Status& why) = 0;
};

class TcpConnection final : public Pollable {
 public:
  TcpConnection(ConnectionOwner* owner, EventLoop* loop, UniqueFd socket)
      : owner_(owner), loop_(loop), socket_(std::move(socket)) {}

  // Any thread. On an error the request is not queued.
  Status Post(const PostedOp& op, Request* request);
  uint64_t served_bytes() const;

  // ---- progress thread -------------------------------------------------------------------------
  Status Attach() { return loop_->Add(socket_.get(), this, true); }
  // See Link::Detach.
  void Detach(const Status& result, RequestList* outstanding);
  bool OnReady(uint32_t events) override;

 private:
  // What a received header asks for, once checked.
  struct Inbound {
    FrameHeader header = {};
    std::byte* to = nullptr;
    uint64_t left = 0;   // payload bytes to come
    bool whole = false;  // act only when the payload is complete in buffer_
  };

  bool SendInline() LUWU_REQUIRES(mutex_);
  // Sends up to a turn's worth; *more: there is more, and the socket takes it.
  Status Flush(bool* more);
  // False when this round is over: the batch went out, or the socket is full.
  bool Advance(ssize_t count, bool all) LUWU_REQUIRES(mutex_);
  void SendFarewell(const Status& why);

  // connection_receive.cc
  Status Receive();
  StatusOr<uint64_t> ReceiveOnce();
  void SetWakeThreshold();
  Status ParseBuffer();
  StatusOr<Inbound> Check(const FrameHeader& header);
  StatusOr<Inbound> CheckWrite(const FrameHeader& header);
  StatusOr<Inbound> CheckRead(const FrameHeader& header);
  StatusOr<Inbound> CheckReply(const FrameHeader& header);
  Status CheckTarget(const FrameHeader& header, Access access, std::byte** at) const;
  Status Finish(const Inbound& inbound, ConstByteSpan whole);
  Status FinishReply(const FrameHeader& header);

  ConnectionOwner* const owner_;
  EventLoop* const loop_;

  mutable Mutex mutex_;
  UniqueFd socket_;  // sent to under mutex_ or while loop_sending_; closed on the progress thread
  SendQueue queue_ LUWU_GUARDED_BY(mutex_);
  Status down_ LUWU_GUARDED_BY(mutex_);           // not OK: detached
  bool blocked_ LUWU_GUARDED_BY(mutex_) = false;  // the socket is full; it will report room
  bool loop_sending_ LUWU_GUARDED_BY(mutex_) = false;
  SendBatch batch_;  // of the progress thread while loop_sending_, else guarded by mutex_

  // Progress thread: receiving.
  bool readable_ = false;
  bool ended_ = false;     // the end of the stream is reported: read until it shows
  bool farewell_ = false;  // the peer has been told why the link ends
  Inbound inbound_;        // a frame whose payload is being received in place
  bool in_payload_ = false;
  int wake_threshold_ = 1;  // SO_RCVLOWAT
  uint64_t write_id_ = 1;   // of the peer's write that is next or being received
  uint64_t read_id_ = 1;    // of the peer's next read
  uint64_t ack_id_ = 0;     // to acknowledge at the end of this turn
  size_t buffered_ = 0;
  std::array<std::byte, 8192> buffer_;
};

}  // namespace luwu::transport
