#include "server/store/stored_bytes.h"

#include <memory>
#include <optional>

#include "common/base/sync.h"

namespace luwu {

Status ReadStored(persist::JobStorage& storage, const persist::ShardEntry& entry, std::byte* data) {
  struct Answer {
    Mutex mutex;
    CondVar came;
    std::optional<Status> status LUWU_GUARDED_BY(mutex);
  };
  const auto answer = std::make_shared<Answer>();
  storage.Read(entry, data, [answer](const Status& status) {
    MutexLock lock(answer->mutex);
    answer->status = status;
    answer->came.NotifyAll();
  });
  MutexLock lock(answer->mutex);
  while (!answer->status) answer->came.Wait(answer->mutex);
  return *answer->status;
}

}  // namespace luwu
