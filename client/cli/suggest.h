// What to say about a command that does not exist.
#pragma once

#include <string>
#include <vector>

namespace luwu::cli {

// The choice that `word` is most likely a slip of the pen for; empty when none is near.
std::string NearestOf(const std::string& word, const std::vector<std::string>& choices);

// "there is no command 'stauts'; did you mean 'status'? Commands: status, jobs, ..."
std::string UnknownCommand(const std::string& word, const std::vector<std::string>& choices);

}  // namespace luwu::cli
