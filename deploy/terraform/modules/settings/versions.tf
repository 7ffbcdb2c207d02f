# No provider, so that this module can be used and tested without an account.
terraform {
  required_version = ">= 1.9"
}
