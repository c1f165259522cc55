// The objects of the fake fabric; only fake_verbs*.cc include this. Each derives from the struct
// that verbs hand out, so that a pointer to one is a pointer to the other.
#pragma once

#include <array>
#include <cstring>

#include "common/base/unique_fd.h"
#include "tests/fakes/fake_verbs.h"

namespace luwu::transport {

struct FakeVerbs::Device : ibv_device {
  FakeDeviceShape shape;
  std::vector<ibv_gid> gid_table;
};

struct FakeVerbs::Context : ibv_context {
  Device* fake = nullptr;
  UniqueFd events_fd;
  std::deque<ibv_async_event> events;
};

struct FakeVerbs::Channel : ibv_comp_channel {
  UniqueFd events_fd;
  std::deque<Cq*> events;
};

struct FakeVerbs::Cq : ibv_cq {
  Channel* fake_channel = nullptr;
  std::deque<ibv_wc> completions;
  bool armed = false;
};

struct FakeVerbs::Srq : ibv_srq {
  std::deque<uint64_t> receives;
  uint32_t capacity = 0;
  uint32_t limit = 0;  // 0: not armed
};

struct FakeVerbs::Mr : ibv_mr {
  unsigned access = 0;
};

struct FakeVerbs::Mw : ibv_mw {
  bool bound = false;
  Grant grant;
  Mr* mr = nullptr;
  uint32_t base_key = 0;  // what it was made with
};

// A posted work request with everything that it needs later.
struct FakeVerbs::Work {
  ibv_send_wr wr = {};
  std::vector<ibv_sge> sges;
  std::vector<std::byte> inline_bytes;
  uint64_t bytes = 0;
};

struct FakeVerbs::Qp : ibv_qp {
  Context* fake_context = nullptr;
  Cq* fake_send_cq = nullptr;
  Cq* fake_recv_cq = nullptr;
  Srq* fake_srq = nullptr;
  unsigned access = 0;
  uint32_t peer = 0;
  uint8_t rnr_retry = 0;
  bool blackhole = false;
  bool signal_all = false;
  std::deque<uint64_t> receives;
  std::deque<Work> pending;
};

}  // namespace luwu::transport
