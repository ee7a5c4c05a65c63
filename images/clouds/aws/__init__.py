"""AWS: Packer's amazon-ebs builds, boto3 does the rest."""

from images.clouds.aws.adaptor import AwsCloud

cloud = AwsCloud()
