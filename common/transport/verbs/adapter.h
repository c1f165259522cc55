// What all verbs links of one dialler or acceptor share: the opened device with its events, and the
// protection domains. Opens the device when it is first needed.
//
// Domain and Pin: any thread. The rest: the progress thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <unordered_map>

#include "common/base/sync.h"
#include "common/transport/event_loop.h"
#include "common/transport/verbs/domain.h"

namespace luwu::transport {

class VerbsEndpoint;

class VerbsAdapter final : public Pollable {
 public:
  VerbsAdapter(std::shared_ptr<EventLoop> loop, VerbsOptions options, bool shared_receives);
  ~VerbsAdapter() override;

  // Opens the device, or says why there is none that does.
  Status Open() LUWU_EXCLUDES(mutex_);
  // The domain `id`, made when it is not there; it lives as long as its regions and links.
  StatusOr<std::shared_ptr<VerbsDomain>> Domain(uint64_t id) LUWU_EXCLUDES(mutex_);
  VerbsCounters counters() const LUWU_EXCLUDES(mutex_);
  std::string Describe() const LUWU_EXCLUDES(mutex_);
  const VerbsOptions& options() const { return options_; }

  // Links, so that events find them; they leave before their queue pairs go.
  void AddLink(VerbsEndpoint* link);
  void RemoveLink(VerbsEndpoint* link);
  void CountFailure(bool protection_fault) LUWU_EXCLUDES(mutex_);

  // Stops watching the device; no link may be left. Before the loop's thread ends.
  void Close();

  // Pollable: events of the device.
  bool OnReady(uint32_t events) override;

 private:
  void OnEvent(const ibv_async_event& event);
  void OnPort(uint8_t port, ibv_event_type type, const Status& why);
  void FailAll(const Status& why);
  VerbsEndpoint* FindLink(const ibv_qp* qp) const;

  const std::shared_ptr<EventLoop> loop_;
  const VerbsOptions options_;
  const bool shared_receives_;

  mutable Mutex mutex_;
  std::shared_ptr<VerbsDevice> device_ LUWU_GUARDED_BY(mutex_);
  std::map<uint64_t, std::weak_ptr<VerbsDomain>> domains_ LUWU_GUARDED_BY(mutex_);
  VerbsCounters counters_ LUWU_GUARDED_BY(mutex_);

  // Progress thread.
  std::vector<VerbsEndpoint*> links_;
};

}  // namespace luwu::transport
