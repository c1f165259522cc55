// The keys of a link: ours for the peer, the peer's for us.
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/transport/socket.h"
#include "common/transport/verbs/channel.h"

namespace luwu::transport {
namespace {

// Binding is work of the device alone; the network has no part in it.
constexpr uint64_t kBindMs = 1000;

}  // namespace

StatusOr<std::vector<VerbsKey>> VerbsChannel::BindKeys() {
  std::vector<VerbsKey> keys;
  for (const ExposedRegion& exposed : exposed_) {
    RETURN_IF_ERROR(domain_->device().has_windows() ? BindRegion(exposed, &keys)
                                                    : RegisterRegion(exposed, &keys));
  }
  if (keys.size() <= kKeysMax) return keys;
  return Error(ErrorCode::kResourceExhausted,
               "the regions of this link need {} keys, at most {} can be told; fewer connections "
               "need fewer",
               keys.size(), kKeysMax);
}

Status VerbsChannel::BindRegion(const ExposedRegion& exposed, std::vector<VerbsKey>* keys) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const Registration> registration,
                   domain_->Register(exposed.region));
  registrations_.push_back(registration);
  for (uint32_t chunk = 0; chunk < registration->chunks().size(); ++chunk) {
    const MrHandle& mr = registration->chunks()[chunk];
    for (uint32_t i = 0; i < queue_pairs_.size(); ++i) {
      VerbsKey key = {exposed.id, chunk, i, 0, reinterpret_cast<uint64_t>(mr->addr), mr->length};
      RETURN_IF_ERROR(BindWindow(mr, exposed.region->access(), &key));
      keys->push_back(key);
    }
  }
  return OkStatus();
}

Status VerbsChannel::BindWindow(const MrHandle& chunk, Access access, VerbsKey* key) {
  ASSIGN_OR_RETURN(MwHandle window, AllocWindow(api(), domain_->pd(), chunk));
  // The low byte of the key is ours to choose.
  key->rkey = (window->rkey & ~0xffU) | (static_cast<uint32_t>(RandomU64()) & 0xffU);
  if (key->rkey == window->rkey) key->rkey ^= 1U;
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.bind_mw.mw = window.get();
  wr.bind_mw.rkey = key->rkey;
  wr.bind_mw.bind_info.mr = chunk.get();
  wr.bind_mw.bind_info.addr = key->address;
  wr.bind_mw.bind_info.length = key->bytes;
  wr.bind_mw.bind_info.mw_access_flags = RemoteFlag(access);
  windows_.push_back(std::move(window));
  ibv_send_wr* bad = nullptr;
  const int error = api()->PostSend(queue_pairs_[key->queue_pair].get(), &wr, &bad);
  if (error != 0) {
    return Error(ErrorCode::kInternal, "binding a memory window failed: {}", ErrnoText(error));
  }
  return AwaitBind();
}

// Nothing else can complete yet: the peer knows no key, and we have posted nothing but this.
Status VerbsChannel::AwaitBind() {
  const TimePoint deadline = DeadlineAfter(kBindMs);
  while (true) {
    ibv_wc wc = {};
    const int count = api()->PollCq(cq_.get(), {&wc, 1});
    if (count == 1 && wc.status == IBV_WC_SUCCESS) return OkStatus();
    if (count != 0) {
      return Error(ErrorCode::kInternal, "binding a memory window failed: {}",
                   CompletionText(wc.status));
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return Error(ErrorCode::kDeadline, "{} took over {} ms to bind a memory window",
                   domain_->device().name(), kBindMs);
    }
    ::sched_yield();
  }
}

Status VerbsChannel::RegisterRegion(const ExposedRegion& exposed, std::vector<VerbsKey>* keys) {
  ASSIGN_OR_RETURN(std::vector<MrHandle> chunks, domain_->RegisterRemote(*exposed.region));
  for (uint32_t chunk = 0; chunk < chunks.size(); ++chunk) {
    const MrHandle& mr = chunks[chunk];
    for (uint32_t i = 0; i < queue_pairs_.size(); ++i) {
      keys->push_back(
          {exposed.id, chunk, i, mr->rkey, reinterpret_cast<uint64_t>(mr->addr), mr->length});
    }
    remote_chunks_.push_back(mr);
  }
  return OkStatus();
}

Status VerbsChannel::TakeKeys(ConstByteSpan content,
                              const std::vector<RegionDescriptor>& expected) {
  const size_t count = content.size() / sizeof(VerbsKey);
  if (content.size() % sizeof(VerbsKey) != 0 || count > kKeysMax) {
    return Error(ErrorCode::kInvalidArgument, "the peer's keys are malformed");
  }
  for (const RegionDescriptor& region : expected) peer_regions_.push_back({region, 0, {}});
  for (size_t i = 0; i < count; ++i) {
    VerbsKey key;
    std::memcpy(&key, content.data() + i * sizeof key, sizeof key);
    RETURN_IF_ERROR(AddPeerKey(key));
  }
  const size_t pairs = queue_pairs_.size();
  for (const PeerRegion& peer : peer_regions_) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < peer.keys.size(); i += pairs) bytes += peer.keys[i].bytes;
    if (peer.keys.size() % pairs != 0 || bytes != peer.region.bytes) {
      return Error(ErrorCode::kInvalidArgument,
                   "the peer's keys do not cover region {} of {} bytes, which was agreed",
                   peer.region.id, peer.region.bytes);
    }
  }
  return OkStatus();
}

// Keys come in the order of chunk and queue pair; all chunks but the last of a region are equal.
Status VerbsChannel::AddPeerKey(const VerbsKey& key) {
  const auto found =
      std::find_if(peer_regions_.begin(), peer_regions_.end(),
                   [&](const PeerRegion& peer) { return peer.region.id == key.region; });
  if (found == peer_regions_.end()) {
    return Error(ErrorCode::kInvalidArgument, "the peer exposes region {}, which was not agreed",
                 key.region);
  }
  if (found->keys.empty()) found->chunk_bytes = key.bytes;
  const uint64_t pairs = queue_pairs_.size();
  const uint64_t chunk = found->keys.size() / pairs;
  const auto begin = CheckedMul(chunk, found->chunk_bytes);
  const uint64_t size = found->region.bytes;
  const bool in_order = key.chunk == chunk && key.queue_pair == found->keys.size() % pairs;
  if (!in_order || !begin || *begin >= size || key.bytes == 0 ||
      key.bytes != std::min(found->chunk_bytes, size - *begin) ||
      !CheckedAdd(key.address, key.bytes)) {
    return Error(ErrorCode::kInvalidArgument, "the peer's keys of region {} are malformed",
                 key.region);
  }
  found->keys.push_back({key.address, key.rkey, key.bytes});
  return OkStatus();
}

RemotePlace VerbsChannel::Place(const RemoteSpan& remote, uint64_t progressed,
                                uint32_t queue_pair) const {
  const auto found =
      std::find_if(peer_regions_.begin(), peer_regions_.end(),
                   [&](const PeerRegion& peer) { return peer.region.id == remote.region(); });
  LUWU_CHECK(found != peer_regions_.end(), "the range was checked when it was posted");
  const uint64_t at = remote.offset() + progressed;
  const uint64_t chunk = at / found->chunk_bytes;
  const uint64_t within = at % found->chunk_bytes;
  const RemotePlace& key = found->keys[chunk * queue_pairs_.size() + queue_pair];
  return {key.address + within, key.rkey,
          std::min(key.bytes - within, remote.bytes() - progressed)};
}

}  // namespace luwu::transport
