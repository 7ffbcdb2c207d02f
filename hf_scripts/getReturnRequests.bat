@echo off
setlocal & if not defined HF_PYTHON set "HF_PYTHON=%~dp0..\.venv\Scripts\python.exe"
"%HF_PYTHON%" -I -c "import sys; sys.path.insert(0, sys.argv.pop(1)); from hf_scripts.launch import main; main()" "%~dp0.." getReturnRequests %*
