# No provider: what this module makes can be made and tested without an account.
terraform {
  required_version = ">= 1.9"
}
