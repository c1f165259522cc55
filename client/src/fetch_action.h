// What a fetch does next, decided under the session's monitor and done without it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/src/fetch_engine.h"

namespace luwu::client {

struct FetchEngine::Action {
  enum class Kind { kDone, kCopy, kRead, kReadAgain, kAccept, kAsk } kind = Kind::kDone;
  const ShardPlan* shard = nullptr;
  ReadUnit* unit = nullptr;
  std::shared_ptr<Link> link = nullptr;
  CopyPlace place = {};  // to copy from
  struct WishFor {
    std::shared_ptr<Link> link;
    uint32_t immediate = 0;
  };
  std::vector<WishFor> wishes = {};
};

}  // namespace luwu::client
