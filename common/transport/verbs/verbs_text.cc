#include "common/transport/verbs/verbs_api.h"

namespace luwu::transport {

std::string CompletionText(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return "success";
    case IBV_WC_LOC_LEN_ERR:
      return "local length error";
    case IBV_WC_LOC_QP_OP_ERR:
      return "local queue pair operation error";
    case IBV_WC_LOC_PROT_ERR:
      return "local protection error";
    case IBV_WC_WR_FLUSH_ERR:
      return "flushed: the queue pair is in error";
    case IBV_WC_MW_BIND_ERR:
      return "memory window bind error";
    case IBV_WC_LOC_ACCESS_ERR:
      return "local access error";
    case IBV_WC_REM_INV_REQ_ERR:
      return "the peer's NIC took the request for invalid";
    case IBV_WC_REM_ACCESS_ERR:
      return "remote access error: the peer's NIC refused the key, the range or the kind of access";
    case IBV_WC_REM_OP_ERR:
      return "remote operation error";
    case IBV_WC_RETRY_EXC_ERR:
      return "no answer from the peer's NIC after all retries; check that both ends use the same "
             "network (rdma.gid_index) and that its MTU passes (rdma.mtu)";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "the peer had no receive posted after all retries";
    case IBV_WC_FATAL_ERR:
      return "fatal error of the device";
    default:
      return fmt::format("completion status {}", static_cast<int>(status));
  }
}

std::string EventText(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_CQ_ERR:
      return "completion queue overrun";
    case IBV_EVENT_QP_FATAL:
      return "queue pair error";
    case IBV_EVENT_QP_REQ_ERR:
      return "the peer sent an invalid request";
    case IBV_EVENT_QP_ACCESS_ERR:
      return "the peer's access was refused: wrong key, range or kind of access";
    case IBV_EVENT_PORT_ERR:
      return "the port went down";
    case IBV_EVENT_LID_CHANGE:
      return "the port's LID changed";
    case IBV_EVENT_PKEY_CHANGE:
      return "the port's partition keys changed";
    case IBV_EVENT_GID_CHANGE:
      return "the port's GID table changed";
    case IBV_EVENT_DEVICE_FATAL:
      return "the device failed";
    default:
      return fmt::format("event {}", static_cast<int>(type));
  }
}

}  // namespace luwu::transport
