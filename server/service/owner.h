// Whose a job or session is: the [[access]] entry by which its maker was let in.
#pragma once

#include <string>

#include "common/config/access_rule.h"

namespace luwu {

struct Owner {
  std::string identity = {};  // empty: nobody is asked who they are
  Quota quota = {};
};

}  // namespace luwu
