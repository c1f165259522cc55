// One worker's session on this node: secret, lease, inbox, board, data link. Created by its job;
// found by id through the SessionTable. Notifications of its link (slot numbers) go to the SlotSink,
// which is the job.
//
// Threads: any, except where stated.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/hmac.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/transport/connect.h"
#include "common/transport/region.h"
#include "common/transport/transport.h"

namespace luwu {

class Session;

// Receives the doorbells of a session, on the data plane's progress thread.
class SlotSink {
 public:
  virtual ~SlotSink() = default;
  virtual void OnSlot(Session& session, uint32_t slot) = 0;
  virtual void OnUnlinked(Session& session, const Status& why) = 0;
};

}  // namespace luwu
