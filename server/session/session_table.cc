#include "server/session/session_table.h"

#include <utility>

namespace luwu {
namespace {

constexpr size_t kEndedMax = 1024;

// Of a link whose session is gone: it says nothing to anybody until Sweep closes it.
class DeafEvents final : public transport::LinkEvents {
 public:
  void OnNotify(uint32_t) override {}
  void OnDisconnect(const Status&) override {}
};

DeafEvents* Deaf() {
  static DeafEvents events;
  return &events;
}

}  // namespace

void SessionTable::Insert(const std::shared_ptr<Session>& session) {
  MutexLock lock(mutex_);
  sessions_[session->id()] = session;
}

void SessionTable::Erase(uint64_t session_id) {
  std::shared_ptr<Session> dropped;  // destroyed without the lock
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session_id);
  if (found == sessions_.end()) return;
  dropped = std::move(found->second);
  sessions_.erase(found);
  const Status why = dropped->Check();
  if (why.ok() || !ended_.emplace(session_id, why).second) return;
  ended_order_.push_back(session_id);
  if (ended_order_.size() <= kEndedMax) return;
  ended_.erase(ended_order_.front());
  ended_order_.pop_front();
}

StatusOr<std::shared_ptr<Session>> SessionTable::Find(uint64_t session_id) const {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session_id);
  if (found == sessions_.end()) {
    const auto ended = ended_.find(session_id);
    if (ended != ended_.end()) return ended->second;
    return Error(ErrorCode::kFenced,
                 "this daemon has no session {:#x}: it ended long ago, or the daemon was "
                 "restarted; open a new session",
                 session_id);
  }
  return found->second;
}

std::vector<HeldRank> SessionTable::HeldBy(const std::string& owner) const {
  MutexLock lock(mutex_);
  std::vector<HeldRank> held;
  for (const auto& [id, session] : sessions_) {
    const WorkerIdentity& worker = session->identity();
    if (worker.owner == owner) {
      held.push_back({session->job_name(), worker.rank, session->slots()});
    }
  }
  return held;
}

StatusOr<transport::SessionTerms> SessionTable::Lookup(uint64_t session_id) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, Find(session_id));
  return session->Terms();
}

transport::LinkEvents* SessionTable::OnLink(uint64_t session_id,
                                            std::unique_ptr<transport::Endpoint> endpoint) {
  const StatusOr<std::shared_ptr<Session>> session = Find(session_id);
  // The raw pointer stays good: a session closes its link before it is destroyed.
  if (session.ok() && (*session)->Link(endpoint)) return session->get();
  MutexLock lock(mutex_);
  strays_.push_back(std::move(endpoint));
  return Deaf();
}

void SessionTable::Sweep() {
  std::vector<std::unique_ptr<transport::Endpoint>> strays;
  {
    MutexLock lock(mutex_);
    strays.swap(strays_);
  }
  for (const auto& endpoint : strays) endpoint->Close();
}

}  // namespace luwu
