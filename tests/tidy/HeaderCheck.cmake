# luwu_check_headers(NAME ROOT dir HEADERS a.h ... DEPS lib ...)
# Target NAME compiles each header (path relative to ROOT) as if it were a source, twice included:
# it fails when a header needs something that it does not include itself. Not part of `all`.
function(luwu_check_headers name)
  cmake_parse_arguments(ARG "" "ROOT" "HEADERS;DEPS" ${ARGN})
  set(sources)
  foreach(header IN LISTS ARG_HEADERS)
    string(REPLACE "/" "." flat ${header})
    set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}.d/${flat}.cc)
    set(text "#include \"${header}\"\n#include \"${header}\"\n")
    file(GENERATE OUTPUT ${source} CONTENT "${text}")
    list(APPEND sources ${source})
  endforeach()
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${sources})
  target_include_directories(${name} PRIVATE ${ARG_ROOT})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  target_compile_options(${name} PRIVATE -O0 -g0)  # the last -O wins; nothing runs
endfunction()
