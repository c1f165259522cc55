// A dialler that knows a session's secret and then does as it likes: what a hostile trainer can do
// with its NIC. It speaks the handshake step by step, sees the daemon's keys, and posts work
// requests of its own making.
#pragma once

#include <memory>
#include <vector>

#include "common/base/unique_fd.h"
#include "common/transport/verbs/adapter.h"
#include "common/transport/verbs/channel.h"
#include "common/transport/verbs/frames.h"
#include "tests/unit/transport/harness.h"

namespace luwu::transport {

class VerbsRawClient {
 public:
  // A device, memory and one connected socket; nothing has been said yet.
  VerbsRawClient(Daemon* daemon, const VerbsOptions& verbs, uint64_t session_id);
  ~VerbsRawClient();

  // Each step of the handshake; the test fails when the daemon does not do its part.
  void Answer();
  void Offer();
  void Keys();
  void All() {
    Answer();
    Offer();
    Keys();
  }

  // The daemon's key for the start of `region`, given to queue pair 0.
  VerbsKey KeyOf(RegionId region) const;
  // Posts one READ or WRITE of `bytes` from queue pair 0 and waits: the completion's status.
  ibv_wc_status Access(ibv_wr_opcode opcode, const VerbsKey& key, uint64_t bytes);
  // What a READ brings, and what a WRITE carries.
  ByteSpan memory() { return memory_; }
  VerbsChannel& channel() { return *channel_; }
  // Goes without a word.
  void Vanish();

 private:
  void Send(const std::vector<std::byte>& frame);
  std::vector<std::byte> Receive(VerbsFrameType type);

  Daemon* const daemon_;
  const uint64_t session_id_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(4096, std::byte{0x5a});
  std::shared_ptr<VerbsDomain> domain_;
  MrHandle mr_;
  std::unique_ptr<VerbsChannel> channel_;
  UniqueFd socket_;
  FrameSeal seal_;
  std::vector<VerbsKey> keys_;
};

}  // namespace luwu::transport
