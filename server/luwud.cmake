# The daemon program. Everything but main() is in libraries, so that tests can use it in-process.
luwu_library(luwu_ops
  SOURCES ops/process.cc ops/service_manager.cc ops/service_reporter.cc ops/signals.cc
  DEPS luwu_base)

luwu_library(luwu_daemon
  SOURCES daemon.cc
  DEPS luwu_daemon_config luwu_ops luwu_metrics luwu_service luwu_step luwu_session luwu_store
       luwu_persist luwu_cluster luwu_optim luwu_transport luwu_rpc luwu_tensor luwu_base)
target_compile_definitions(luwu_daemon PRIVATE LUWU_VERSION="${PROJECT_VERSION}")

find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
add_executable(luwud main.cc)
target_compile_definitions(luwud PRIVATE LUWU_VERSION="${PROJECT_VERSION}")
target_link_libraries(luwud PRIVATE
  luwu_options luwu_daemon luwu_daemon_config luwu_metrics luwu_ops luwu_config luwu_base
  CLI11::CLI11 nlohmann_json::nlohmann_json)
luwu_use_precompiled(luwud luwu_pch luwu_daemon)
install(TARGETS luwud RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT luwud)
