// The work of the fake fabric: queue pair states, posting, moving bytes, completions.
#include <arpa/inet.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "common/base/bytes.h"
#include "common/transport/store_bytes.h"
#include "tests/fakes/fake_verbs_objects.h"

namespace luwu::transport {
namespace {

constexpr uint8_t kRnrForEver = 7;

bool HasImmediate(const ibv_send_wr& wr) {
  return wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM || wr.opcode == IBV_WR_SEND_WITH_IMM;
}

bool IsSend(const ibv_send_wr& wr) {
  return wr.opcode == IBV_WR_SEND || wr.opcode == IBV_WR_SEND_WITH_IMM;
}

bool MovesState(ibv_qp_state from, ibv_qp_state to) {
  return to == IBV_QPS_ERR || (from == IBV_QPS_RESET && to == IBV_QPS_INIT) ||
         (from == IBV_QPS_INIT && to == IBV_QPS_RTR) || (from == IBV_QPS_RTR && to == IBV_QPS_RTS);
}

}  // namespace

// ---- completion queues -------------------------------------------------------------------------

int FakeVerbs::GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) {
  MutexLock lock(mutex_);
  auto* fake = static_cast<Channel*>(channel);
  eventfd_t ignored = 0;
  (void)::eventfd_read(fake->fd, &ignored);
  if (fake->events.empty()) return EAGAIN;
  *cq = fake->events.front();
  fake->events.pop_front();
  return 0;
}

int FakeVerbs::ReqNotifyCq(ibv_cq* cq) {
  MutexLock lock(mutex_);
  static_cast<Cq*>(cq)->armed = true;
  return 0;
}

int FakeVerbs::PollCq(ibv_cq* cq, std::span<ibv_wc> completions) {
  MutexLock lock(mutex_);
  auto& queue = static_cast<Cq*>(cq)->completions;
  const size_t count = std::min(queue.size(), completions.size());
  std::copy_n(queue.begin(), count, completions.begin());
  queue.erase(queue.begin(), queue.begin() + static_cast<ptrdiff_t>(count));
  return static_cast<int>(count);
}

void FakeVerbs::PushCompletion(Cq* cq, const ibv_wc& wc) {
  cq->completions.push_back(wc);
  if (!std::exchange(cq->armed, false)) return;
  cq->fake_channel->events.push_back(cq);
  (void)::eventfd_write(cq->fake_channel->fd, 1);
}

void FakeVerbs::Complete(Qp* qp, const Work& work, ibv_wc_status status) {
  const bool asked = (work.wr.send_flags & IBV_SEND_SIGNALED) != 0 || qp->signal_all;
  if (status == IBV_WC_SUCCESS && !asked) return;
  ibv_wc wc = {};
  wc.wr_id = work.wr.wr_id;
  wc.status = status;
  wc.qp_num = qp->qp_num;
  wc.opcode = work.wr.opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ
              : work.wr.opcode == IBV_WR_BIND_MW ? IBV_WC_BIND_MW
              : IsSend(work.wr)                  ? IBV_WC_SEND
                                                 : IBV_WC_RDMA_WRITE;
  PushCompletion(qp->fake_send_cq, wc);
}

// ---- queue pairs -------------------------------------------------------------------------------

int FakeVerbs::ModifyQp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  MutexLock lock(mutex_);
  auto* fake = static_cast<Qp*>(qp);
  if ((mask & IBV_QP_STATE) == 0 || !MovesState(fake->state, attr->qp_state)) return EINVAL;
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) fake->access = attr->qp_access_flags;
  if ((mask & IBV_QP_DEST_QPN) != 0) fake->peer = attr->dest_qp_num;
  if ((mask & IBV_QP_RNR_RETRY) != 0) fake->rnr_retry = attr->rnr_retry;
  if ((mask & IBV_QP_AV) != 0 && attr->ah_attr.is_global != 0) {
    const bool known = std::any_of(devices_.begin(), devices_.end(), [&](const auto& device) {
      return std::any_of(device->gid_table.begin(), device->gid_table.end(), [&](const auto& gid) {
        return std::memcmp(gid.raw, attr->ah_attr.grh.dgid.raw, sizeof gid.raw) == 0;
      });
    });
    if (!known) return ENETUNREACH;
  }
  if (attr->qp_state == IBV_QPS_ERR) {
    EnterError(fake);
  } else {
    fake->state = attr->qp_state;
  }
  return 0;
}

void FakeVerbs::EnterError(Qp* qp) {
  if (qp->state == IBV_QPS_ERR) return;
  qp->state = IBV_QPS_ERR;
  for (const Work& work : qp->pending) Complete(qp, work, IBV_WC_WR_FLUSH_ERR);
  qp->pending.clear();
  for (const uint64_t wr_id : qp->receives) {
    ibv_wc wc = {};
    wc.wr_id = wr_id;
    wc.status = IBV_WC_WR_FLUSH_ERR;
    wc.opcode = IBV_WC_RECV;
    wc.qp_num = qp->qp_num;
    PushCompletion(qp->fake_recv_cq, wc);
  }
  qp->receives.clear();
}

int FakeVerbs::QueryQp(ibv_qp* qp, ibv_qp_attr* attr, int) {
  MutexLock lock(mutex_);
  attr->qp_state = static_cast<Qp*>(qp)->state;
  return 0;
}

int FakeVerbs::PostRecv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  MutexLock lock(mutex_);
  auto* fake = static_cast<Qp*>(qp);
  if (fake->state == IBV_QPS_RESET || fake->state == IBV_QPS_ERR) {
    *bad = wr;
    return EINVAL;
  }
  for (; wr != nullptr; wr = wr->next) fake->receives.push_back(wr->wr_id);
  ProgressAll();
  return 0;
}

int FakeVerbs::PostSrqRecv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  MutexLock lock(mutex_);
  auto* fake = static_cast<Srq*>(srq);
  for (; wr != nullptr; wr = wr->next) {
    if (fake->receives.size() >= fake->capacity) {
      *bad = wr;
      return ENOMEM;
    }
    fake->receives.push_back(wr->wr_id);
  }
  ProgressAll();
  return 0;
}

int FakeVerbs::PostSend(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  MutexLock lock(mutex_);
  auto* fake = static_cast<Qp*>(qp);
  for (; wr != nullptr; wr = wr->next) {
    if (fake->state != IBV_QPS_RTS && fake->state != IBV_QPS_ERR) {
      *bad = wr;
      return EINVAL;
    }
    Enqueue(fake, *wr);
  }
  Progress(fake);
  return 0;
}

void FakeVerbs::Enqueue(Qp* qp, const ibv_send_wr& wr) {
  Work work;
  work.wr = wr;
  for (int i = 0; i < wr.num_sge; ++i) {
    work.sges.push_back(wr.sg_list[i]);
    work.bytes += wr.sg_list[i].length;
  }
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
    for (const ibv_sge& sge : work.sges) {
      const auto* from = reinterpret_cast<const std::byte*>(sge.addr);
      work.inline_bytes.insert(work.inline_bytes.end(), from, from + sge.length);
    }
  }
  if (qp->state == IBV_QPS_ERR) return Complete(qp, work, IBV_WC_WR_FLUSH_ERR);
  qp->pending.push_back(std::move(work));
}

void FakeVerbs::ProgressAll() {
  for (Qp* qp : std::vector<Qp*>(qp_order_)) Progress(qp);
}

void FakeVerbs::Progress(Qp* qp) {
  while (qp->state == IBV_QPS_RTS && !qp->pending.empty() && !qp->blackhole) {
    if (!Execute(qp, &qp->pending.front())) return;
    if (!qp->pending.empty() && qp->state == IBV_QPS_RTS) qp->pending.pop_front();
  }
}

// ---- one work request --------------------------------------------------------------------------

bool FakeVerbs::Execute(Qp* qp, Work* work) {
  const auto fail = [&](ibv_wc_status status) LUWU_REQUIRES(mutex_) {
    Complete(qp, *work, status);
    qp->pending.pop_front();
    EnterError(qp);
    return true;
  };
  if (next_status_) {
    const ibv_wc_status status = *next_status_;
    next_status_.reset();
    return fail(status);
  }
  if (work->wr.opcode == IBV_WR_BIND_MW) {
    if (!Bind(qp, *work)) return fail(IBV_WC_MW_BIND_ERR);
    Complete(qp, *work, IBV_WC_SUCCESS);
    return true;
  }
  if (!LocalRangesFit(qp, *work)) return fail(IBV_WC_LOC_PROT_ERR);
  Qp* target = Target(qp);
  if (target == nullptr) return fail(IBV_WC_RETRY_EXC_ERR);
  if (!IsSend(work->wr) && !RemoteRangeFits(target, *work)) {
    ++refused_;
    EnterError(target);
    ibv_async_event event = {};
    event.event_type = IBV_EVENT_QP_ACCESS_ERR;
    event.element.qp = target;
    PushEvent(target->fake_context, event);
    return fail(IBV_WC_REM_ACCESS_ERR);
  }
  uint64_t receive = 0;
  const bool receives = HasImmediate(work->wr) || IsSend(work->wr);
  if (receives && !TakeReceive(target, &receive)) {
    return qp->rnr_retry == kRnrForEver ? false : fail(IBV_WC_RNR_RETRY_EXC_ERR);
  }
  Move(*work);
  if (work->bytes > 0) ++accesses_;
  if (receives) {
    ibv_wc wc = {};
    wc.wr_id = receive;
    wc.status = IBV_WC_SUCCESS;
    wc.opcode = IsSend(work->wr) ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
    wc.qp_num = target->qp_num;
    wc.imm_data = work->wr.imm_data;
    PushCompletion(target->fake_recv_cq, wc);
  }
  Complete(qp, *work, IBV_WC_SUCCESS);
  return true;
}

FakeVerbs::Qp* FakeVerbs::Target(Qp* qp) {
  if (!qp->fake_context->fake->shape.port_active) return nullptr;
  const auto found = qps_.find(qp->peer);
  if (found == qps_.end()) return nullptr;
  Qp* target = found->second;
  const bool ready = target->state == IBV_QPS_RTR || target->state == IBV_QPS_RTS;
  return ready && target->peer == qp->qp_num ? target : nullptr;
}

bool FakeVerbs::TakeReceive(Qp* target, uint64_t* wr_id) {
  if (hold_receives_) return false;
  auto& receives = target->fake_srq != nullptr ? target->fake_srq->receives : target->receives;
  if (receives.empty()) return false;
  *wr_id = receives.front();
  receives.pop_front();
  Srq* srq = target->fake_srq;
  if (srq != nullptr && srq->limit != 0 && receives.size() < srq->limit) {
    srq->limit = 0;
    ibv_async_event event = {};
    event.event_type = IBV_EVENT_SRQ_LIMIT_REACHED;
    event.element.srq = srq;
    PushEvent(target->fake_context, event);
  }
  return true;
}

bool FakeVerbs::LocalRangesFit(Qp* qp, const Work& work) {
  if ((work.wr.send_flags & IBV_SEND_INLINE) != 0) return true;
  for (const ibv_sge& sge : work.sges) {
    const auto found = mrs_.find(sge.lkey);
    if (found == mrs_.end() || found->second->pd != qp->pd) return false;
    const Mr& mr = *found->second;
    const auto begin = reinterpret_cast<uint64_t>(mr.addr);
    if (sge.addr < begin || !RangeFits(sge.addr - begin, sge.length, mr.length)) return false;
    const bool writes = work.wr.opcode == IBV_WR_RDMA_READ;
    if (writes && (mr.access & IBV_ACCESS_LOCAL_WRITE) == 0) return false;
  }
  return true;
}

std::optional<FakeVerbs::Grant> FakeVerbs::GrantOf(uint32_t rkey) {
  if (const auto found = mws_.find(rkey); found != mws_.end()) {
    if (!found->second->bound) return std::nullopt;
    return found->second->grant;
  }
  const auto found = mrs_.find(rkey);
  if (found == mrs_.end()) return std::nullopt;
  const Mr& mr = *found->second;
  const auto begin = reinterpret_cast<uint64_t>(mr.addr);
  return Grant{mr.pd, begin, begin + mr.length, mr.access, 0};
}

bool FakeVerbs::RemoteRangeFits(Qp* target, const Work& work) {
  if (work.bytes == 0) return true;
  const std::optional<Grant> grant = GrantOf(work.wr.wr.rdma.rkey);
  if (!grant || grant->pd != target->pd) return false;
  if (grant->only_qp != 0 && grant->only_qp != target->qp_num) return false;
  const unsigned needs = work.wr.opcode == IBV_WR_RDMA_READ
                             ? static_cast<unsigned>(IBV_ACCESS_REMOTE_READ)
                             : static_cast<unsigned>(IBV_ACCESS_REMOTE_WRITE);
  if ((grant->access & needs) == 0 || (target->access & needs) == 0) return false;
  const uint64_t at = work.wr.wr.rdma.remote_addr;
  return at >= grant->begin && RangeFits(at - grant->begin, work.bytes, grant->end - grant->begin);
}

bool FakeVerbs::WouldAllow(ibv_qp* target, const Key& key) {
  MutexLock lock(mutex_);
  Work work;
  work.wr.opcode = key.write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
  work.wr.wr.rdma = {key.address, key.rkey};
  work.bytes = key.bytes;
  return RemoteRangeFits(static_cast<Qp*>(target), work);
}

bool FakeVerbs::Bind(Qp* qp, const Work& work) {
  auto* mw = static_cast<Mw*>(work.wr.bind_mw.mw);
  auto* mr = static_cast<Mr*>(work.wr.bind_mw.bind_info.mr);
  const uint64_t begin = work.wr.bind_mw.bind_info.addr;
  const uint64_t bytes = work.wr.bind_mw.bind_info.length;
  const unsigned access = work.wr.bind_mw.bind_info.mw_access_flags;
  const auto first = reinterpret_cast<uint64_t>(mr->addr);
  const bool writes = (access & IBV_ACCESS_REMOTE_WRITE) != 0;
  if (mw->bound || mw->pd != qp->pd || mr->pd != qp->pd || (mr->access & IBV_ACCESS_MW_BIND) == 0 ||
      (writes && (mr->access & IBV_ACCESS_LOCAL_WRITE) == 0) || begin < first ||
      !RangeFits(begin - first, bytes, mr->length) ||
      (work.wr.bind_mw.rkey & ~0xffU) != (mw->base_key & ~0xffU)) {
    return false;
  }
  mws_.erase(mw->rkey);
  mw->rkey = work.wr.bind_mw.rkey;
  mws_[mw->rkey] = mw;
  mw->bound = true;
  mw->mr = mr;
  mw->grant = {mw->pd, begin, begin + bytes, access, qp->qp_num};
  ++children_[mr];
  return true;
}

void FakeVerbs::Move(const Work& work) {
  auto* remote = reinterpret_cast<std::byte*>(work.wr.wr.rdma.remote_addr);
  if (IsSend(work.wr)) return;
  if ((work.wr.send_flags & IBV_SEND_INLINE) != 0) {
    return StoreBytes(remote, work.inline_bytes);
  }
  for (const ibv_sge& sge : work.sges) {
    auto* local = reinterpret_cast<std::byte*>(sge.addr);
    if (work.wr.opcode == IBV_WR_RDMA_READ) {
      LoadBytes(local, {remote, sge.length});
    } else {
      StoreBytes(remote, {local, sge.length});
    }
    remote += sge.length;
  }
}

}  // namespace luwu::transport
